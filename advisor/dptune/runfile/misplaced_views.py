"""Views and reshapes that move a dimension without moving its values, where a transpose is meant."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class MisplacedViewFacts:
    """A line of the script that gives a tensor with gradients, or a batch, the sizes that a transpose would give.

    `where` is the line, `function` the function it is in, `operator` the method (`view`, `reshape`). `given` and `made`
    are the shapes before and after, `instead` the calls that move the values as well. `steps` of `steps_seen` steps
    compute with the result, as with rows and columns, on the way to the loss. `certain`: the sizes have no common
    factors by which the same view could regroup values on purpose.
    """

    where: str
    function: str = ""
    operator: str = ""
    given: list[int] = field(default_factory=list)
    made: list[int] = field(default_factory=list)
    instead: str = ""
    steps: int = 0
    steps_seen: int = 0
    certain: bool = False

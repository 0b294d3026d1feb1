"""Parameters that get gradients and that no optimizer holds."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class LeftOutFacts:
    """Parameters of one backward call that no optimizer of the process holds, and whose values do not change.

    `where` is the script's line of the call, `optimizer` the class of the optimizer that holds most of the other
    parameters of the pass, and `optimizer_where` the line that makes it. `tensors` and `parameters` are of the
    parameters left out, `of_tensors` counts all that the pass computes gradients of. `modules`: the modules that hold
    them, by their path in the model. `added_where`: where the script added them to their module after it had made an
    optimizer, as `function (file:line)`; `added_later`: whether it did. `listed_in`: the attribute (`Net.layers`) that
    holds them in a plain list or dict, which torch does not register; `listed_where` the line that assigns it.
    """

    where: str | None = None
    optimizer: str = ""
    optimizer_where: str | None = None
    tensors: int = 0
    of_tensors: int = 0
    parameters: int = 0
    modules: list[str] = field(default_factory=list)
    added_later: bool = False
    added_where: str | None = None
    listed_in: str = ""
    listed_where: str | None = None

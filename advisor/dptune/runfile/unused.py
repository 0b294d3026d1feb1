"""Gradients that a backward pass computes and no optimizer uses, and passes that a sum of losses would spare."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class NeedlessPart(NamedTuple):
    """The part of a backward pass that only unused gradients need: the least, likely and largest one."""

    least: float
    likely: float
    most: float


@dataclass
class UnusedGradientFacts:
    """Parameters whose gradients from one backward call are never used.

    `where` is the script's line of the call, `optimizer` that of the optimizer which discards the gradients in each
    step, None where no optimizer has these parameters. `tensors` and `gradient_bytes` are of these parameters,
    `of_tensors` counts all that the pass computes gradients of. `modules` are the parts of the DDP module they belong
    to, `made_at` the line that wraps it, `reduced` whether the pass averages their gradients over the ranks.
    `spent_ns` is the host time of this call in all steps of the untraced window together. `entered_at` is the line that
    calls a module on a tensor through which the pass gets to these parameters, and to no others; `runs_at` the one that
    calls a module which has only such parameters, where no optimizer has them. `needless` is the least, likely and
    largest part of the pass that only these gradients need, as timed in warm-up steps on a CPU; empty if not known.
    """

    where: str | None = None
    optimizer: str | None = None
    tensors: int = 0
    of_tensors: int = 0
    gradient_bytes: int = 0
    modules: list[str] = field(default_factory=list)
    made_at: str | None = None
    reduced: bool = False
    spent_ns: int = 0
    entered_at: str | None = None
    runs_at: str | None = None
    needless: list[float] = field(default_factory=list)


@dataclass
class RepeatedPassFacts:
    """A call of backward with `retain_graph=True` that goes back through one graph several times per step.

    `passes` counts them per step, all of which add to the same gradients; `again_ns` is the host time of all but the
    first of each step, in the untraced window. `shared_part` is the part of their time in operators that an earlier
    pass of the step went through, as timed in warm-up steps on a CPU; None if not known. `also_at`: other calls of
    backward that go through the graph which this one keeps.
    """

    where: str | None = None
    passes: float = 0.0
    again_ns: int = 0
    shared_part: float | None = None
    also_at: list[str] = field(default_factory=list)

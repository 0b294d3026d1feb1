"""Mean losses of micro-batches whose gradients add up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class UndividedLossFacts:
    """Optimizer steps that use the gradients of several backward passes, in the warm-up steps.

    `passes` of a step, all from the line `where`; `steps` that were compared. In `undivided` of them each pass starts
    from a mean loss that is not divided, and the gradients are not divided before the step. `drawn`: each pass has a
    batch of its own from the loader. `step_where`: the line that calls the optimizer step.
    """

    optimizer: str
    passes: int
    steps: int
    undivided: int
    drawn: bool = False
    where: str | None = None
    step_where: str | None = None

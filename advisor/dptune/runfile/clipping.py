"""Calls that clip gradients, and whether optimizer steps use the clipped gradients."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class ClippingFacts:
    """One line that clips gradients of an optimizer, by torch's functions, in the warm-up steps.

    `steps`: those of the optimizer after its first such call. In `changed` of them, a backward pass changed the
    gradients after the last call, so the step used unclipped ones. `local`: calls that clipped the shards of one rank
    (FSDP1) by the norm of these shards alone. `step_where`: the line that calls the optimizer step.
    """

    where: str
    optimizer: str
    calls: int = 0
    steps: int = 0
    changed: int = 0
    local: int = 0
    step_where: str | None = None

"""Calls that clip gradients, against the optimizer steps that use these gradients."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class ClippingFacts:
    """One line that clips gradients of an optimizer, by torch's functions, in the warm-up steps.

    Of `steps` of the optimizer after its first such call, `changed` had a backward pass that changed the gradients
    after the last call: they were not clipped. `local`: how many calls clipped the shards of one rank (FSDP1) by the
    norm of these alone. `step_where`: the line of the steps.
    """

    where: str
    optimizer: str
    calls: int = 0
    steps: int = 0
    changed: int = 0
    local: int = 0
    step_where: str | None = None

"""Losses that compare each prediction with each target."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class BroadcastLossFacts:
    """An operator between the model's outputs and the loss that broadcasts B predictions and B targets to B x B.

    `operator` is its name, `where` the script's line that calls it, `predictions` and `targets` are shapes.
    `passes`: in how many of the `passes_seen` backward passes of the warm-up steps its result was reduced to the loss.
    """

    operator: str
    where: str | None = None
    predictions: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    passes: int = 0
    passes_seen: int = 0

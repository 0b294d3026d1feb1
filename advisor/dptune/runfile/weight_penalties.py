"""Squares of trainable weights in the loss: an L2 penalty that the optimizer's `weight_decay` can take the place of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class WeightPenaltyFacts:
    """Squared weights that the graph of a loss sums up.

    `function` is the script's function that squares them with its line, as `function (file:line)`. `tensors` and
    `elements` count the weights in one backward pass, `passes` the backward passes of the warm-up steps with them, of
    `passes_seen`.
    """

    function: str | None = None
    tensors: int = 0
    elements: int = 0
    passes: int = 0
    passes_seen: int = 0

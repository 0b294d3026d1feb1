"""Losses whose targets hold a value that the trained parameters predict, and keep its gradients."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class BootstrappedTargetFacts:
    """A loss that compares a value with `reward + discount * value`, both with gradients to the same parameters.

    `loss`: the function or operator that compares, by the name of its backward function; `where`: the line that makes
    the target, `loss_where` the line that compares. `discount`: the largest factor of the value in the target;
    `parameters`: how many tensors both values depend on. `passes` of `passes_seen` backward passes have it. `sign`:
    what shows that it is a temporal-difference target and no residual of an equation: a mask of `episode ends`, a
    selection among `actions`, the `order` of rows; empty for nothing.
    """

    loss: str
    discount: float
    parameters: int
    where: str | None = None
    loss_where: str | None = None
    passes: int = 0
    passes_seen: int = 0
    sign: str = ""

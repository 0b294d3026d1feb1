"""Whether backward passes compute in fp16, and what the script multiplies the loss by before them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class LossScalingFacts:
    """Of the first backward passes of the warm-up steps that start after fp16 autocast was entered.

    `half_passes`: those of the `passes` whose graph holds a value in fp16. `factor`: of each pass the largest by
    which the script multiplies a term of its loss, of all passes the smallest; 1.0 where it multiplies none.
    """

    passes: int
    half_passes: int
    factor: float


@dataclass
class ScaledClippingFacts:
    """The line that clips gradients before the GradScaler has unscaled them, and how many times it did."""

    where: str
    times: int = 0

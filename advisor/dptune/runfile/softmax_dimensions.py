"""Softmax over another dimension than the one that its result is used along."""

from __future__ import annotations

from dataclasses import dataclass

LOSS, CROSS_ENTROPY, WEIGHTS = "loss", "cross_entropy", "weights"  # what uses the result


@dataclass
class SoftmaxDimensionFacts:
    """Probabilities that sum to 1 over `dim` of `sizes`, where the loss takes classes from, or a product sums over,
    `expected`.

    `used_as` is `loss`, for `nll_loss` or `ctc_loss`; `cross_entropy`, which applies softmax itself; or `weights`, for
    the matrix product of attention weights and values. `function` is `softmax` or `log_softmax`. `count`: in the
    pass that has most of them; `passes`: backward passes with one, of `passes_seen` that were read. `where`: the line
    that calls the function, `use_where` the line that calls the loss or product.
    """

    used_as: str = LOSS
    function: str = "softmax"
    dim: int = 0
    expected: int = 0
    sizes: list[int] | None = None
    where: str | None = None
    use_where: str | None = None
    count: int = 0
    passes: int = 0
    passes_seen: int = 0

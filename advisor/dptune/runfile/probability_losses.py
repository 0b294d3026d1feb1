"""Losses that expect logits or log-probabilities and are given other outputs."""

from __future__ import annotations

import math
from dataclasses import dataclass

KL_DIV = "kl_div"
INPUT, TARGET, LOG_TARGET, SWAPPED = "input", "target", "log target", "swapped"  # what is of the wrong kind


@dataclass
class ProbabilityLossFacts:
    """A loss that applies softmax or sigmoid itself, to what a softmax or a sigmoid has returned; or an `nll_loss`.

    `applied` is `softmax` or `sigmoid`, what the outputs come from, and `where` the script's line that calls it; `loss`
    is the function in the loss that takes logits (`log_softmax`, `binary_cross_entropy_with_logits`, `logsigmoid`), and
    `loss_where` the line that calls that. An `nll_loss` takes log-probabilities; `applied` is `layer` where it is given
    the outputs of a linear or convolution layer. `classes`: over how many the loss takes its softmax. `passes`: in how
    many of the `passes_seen` backward passes of the warm-up steps.

    A `kl_div` takes log-probabilities and probabilities. `argument` is the argument of the wrong kind: the `input`, the
    `target`, the `log target` where `log_target=True` is passed, or both, which are `swapped`. `applied` then also is
    what it gets: `probabilities`, `log-probabilities` or `negative values`. Its passes are calls at this line.
    """

    applied: str
    loss: str
    where: str | None = None
    loss_where: str | None = None
    classes: int | None = None
    passes: int = 0
    passes_seen: int = 0
    argument: str = INPUT

    @property
    def least_loss(self) -> float | None:
        """The cross-entropy of a sample that is classified perfectly: its class has 1, all others 0; else None."""
        if self.loss != "log_softmax" or not self.classes:
            return None
        return math.log(math.e + self.classes - 1) - 1

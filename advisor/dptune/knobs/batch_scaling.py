"""How settings of an optimizer follow the batch size.

SGD: the learning rate grows linearly (Goyal et al. 2017, arXiv:1706.02677). Adam and AdamW: with the square root; betas
and eps follow the same limit (Malladi et al. 2022, arXiv:2205.10287).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dptune.knobs.knob import Value

SETS_RATE = ("OneCycleLR", "CyclicLR")  # schedulers with rates of their own, whatever the optimizer was made with
_ROOT = ("Adam", "AdamW")


def scaled_with_batch(
    optimizer: str, times: int, rate: float, betas: Sequence[float] = (), eps: float | None = None
) -> dict[str, Value]:
    """The settings by knob name for a batch that is `times` as large, from those in force; empty without a rule."""
    if optimizer == "SGD":
        return {"optimizer.lr": _rounded(rate * times)}
    after = [1 - times * (1 - beta) for beta in betas]
    if optimizer not in _ROOT or min(after, default=0.0) < 0:
        return {}
    settings: dict[str, Value] = {"optimizer.lr": _rounded(rate * math.sqrt(times))}
    if len(after) == 2 and eps:
        settings["optimizer.betas"] = listed_betas(after)
        settings["optimizer.eps"] = _rounded(eps / math.sqrt(times))
    return settings


def listed_betas(betas: Sequence[float]) -> str:
    """Betas as the value of their knob."""
    return ",".join(f"{beta:.9f}".rstrip("0").rstrip(".") for beta in betas)


def _rounded(rate: float) -> float:
    """To three digits: no rule is more exact."""
    return float(f"{rate:.3g}")

"""Predicted steps of which only a range is known: any single step in it would be no promise."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dptune.predicted import Prediction
from dptune.whatif.gpu.changes import RANGED

# How far off the best step between two ends may be, as a share of the true one: (high - low) / (high + low) for their
# harmonic mean, which is as far off at either end; any other step is farther off at one of them. Where that is above
# 30 % (high / low above 1.86), no step is named. A predicted step is to be at most 15 % off. Of 109 simulated steps of
# the fifth to the eleventh draw whose ends are 1.3 to 1.86 apart, 108 were at most half as far off as their ends
# allow; so above this limit a step may be more than 15 % off. Of 45 above it, 8 were 12 to 20 % off.
_MOST_OFF = 0.30
_PRECISION = ("precision.", "cudnn.allow_tf32", "fsdp.param_dtype")
_RATE = "the speedup of matrix products in this precision depends on their shapes, which were not benchmarked"
_RECORDED = f"the upper end of its interval is more than {(1 + _MOST_OFF) / (1 - _MOST_OFF):.2f}x the lower"


def too_far_apart(low_ns: float, high_ns: float) -> bool:
    """Whether no step between these ends is surely within 30 % of the true one."""
    return high_ns - low_ns > _MOST_OFF * (high_ns + low_ns)


def as_range(prediction: Prediction, on_gpus: Collection[str]) -> Prediction:
    """The prediction, or the range between its ends where these are too far apart to name a step.

    `on_gpus`: the changes, where they are of GPU steps; the effect of some rests on assumed figures.
    """
    if not too_far_apart(prediction.low_ns, prediction.high_ns):
        return prediction
    why = f"no single step time is predicted, because {_cause(sorted(RANGED.keys() & set(on_gpus)))}"
    per_sample = {} if prediction.known("ns_per_sample") is None else {"ns_per_sample": why}
    missing = {**prediction.missing, "step_ns": why, **per_sample}
    return prediction.model_copy(update={"step_ns": None, "ns_per_sample": None, "missing": missing})


def _cause(assumed: Sequence[str]) -> str:
    if any(name.startswith(_PRECISION) for name in assumed):
        return _RATE
    return f"the effect of {' and '.join(assumed)} is estimated, not measured" if assumed else _RECORDED

"""What a recommendation is expected to save, in one sentence."""

from __future__ import annotations

from dptune.advice import Advice, Saving
from dptune.advise.limits import milliseconds, percent
from dptune.measured import in_ms


def expected_saving(advice: Advice, step_ns: int | None) -> str:
    """What a change saves of a step of this length, in one sentence; empty where it saves no time."""
    saves = advice.saves
    if saves is None:
        return ""
    if saves.large_unknown:
        return f"Saving unknown, upper bound {_most(saves, step_ns)}."
    if saves.samples_times != 1:  # a step takes longer then
        low = percent(saves.low_share).removesuffix(" %")
        return f"It saves {low} to {percent(saves.high_share)} of the time per sample."
    if saves.basis == "bound":
        return f"Upper bound of the saving: {_most(saves, step_ns)}."
    part = "each step" if saves.mean_step_ms is None else "the mean step"
    return f"It saves {in_ms(saves.low_ms * 1e6)} to {in_ms(saves.high_ms * 1e6)} ms of {part}."


def _most(saves: Saving, step_ns: int | None) -> str:
    """`38.4 ms of each 220 ms step`, or the share of the time per sample where steps get longer."""
    if saves.samples_times != 1:
        return f"{percent(saves.high_share)} of the time per sample"
    most = milliseconds(saves.high_ms * 1e6)
    if saves.mean_step_ms is not None:
        return f"{most} of the mean step"
    return f"{most} of {'each step' if step_ns is None else f'each {milliseconds(step_ns)} step'}"

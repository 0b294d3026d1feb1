"""Predicted savings of recorded faults, against the step of the same run with the fault mended."""

import json
from pathlib import Path
from statistics import median

import pytest

from .. import reading  # noqa: TID252 - tests are no installed package
from .test_recorded import LARGE

RUNS = Path(__file__).parent / "recorded" / "runs"
FAULTS = {
    "DP402": "double-precision",
    "DP405": "unsupported-dtype",
    "DP603": "unfused-optimizer",
    "DP615": "long-convolutions",
    "DP616": "ignored-targets",
    "DP617": "one-hot-products",
    "DP621": "broadcast-reductions",
    "DP624": "upsampled-convolutions",
}


def step_ns(run):
    """Of the slowest rank, the median of its steps without the profiler."""
    windows = (json.loads(path.read_text())["windows"] for path in run.glob("rank-*.facts.json"))
    timed = [window for of_rank in windows for window in of_rank if window["name"] == "untraced"]
    return max(median(window["durations_ns"]) for window in timed)


@pytest.mark.long
@pytest.mark.parametrize(
    ("code", "fault"),
    [pytest.param(code, fault, marks=pytest.mark.thorough if fault in LARGE else ()) for code, fault in FAULTS.items()],
)
def test_what_the_mended_run_saves_is_inside_the_interval(code, fault):
    saved = 1 - step_ns(RUNS / f"{fault}-mended") / step_ns(RUNS / fault)
    (advice,) = (advice for advice in reading.reported(RUNS / fault).advice if advice.rule == code)
    assert advice.saves.predicted_share is not None
    assert 0 < advice.saves.low_share <= saved <= advice.saves.high_share

"""Predictions from a model by hand: their intervals, and when they are bounds."""

from dataclasses import replace

import pytest

from dptune.runfile.facts import Window
from dptune.whatif.buckets import Caps
from dptune.whatif.model import Pass, RankStep, StepModel
from dptune.whatif.predicting import Ground, unsure_ns
from dptune.whatif.wire import Link

from ..rules.conftest import measured_run  # noqa: TID252 - tests are no installed package

STEP = RankStep((Pass(0.0, 100.0, 60.0, (10.0, 50.0)),) * 2, 50.0)
MODEL = StepModel({0: [STEP], 1: [STEP]}, (30, 30), Caps((100,)), Link(0, 1.0), samples=64)  # 2 * (150 + 60) + 50
SLOWER = replace(MODEL, link=Link(0, 0.5))


def ground(**more):
    """It measured 500 where the model has 470; the link may be half as quick."""
    known = {
        "step_ns": 500,
        "replayed_ns": 470.0,
        "error_share": 0.06,
        "held_out_share": 0.05,
        "slack_ns": 10.0,
        "model": MODEL,
    }
    return Ground(variants=(SLOWER,), measured=measured_run(samples=64), **{**known, **more})


def test_a_prediction_is_the_measured_step_and_what_the_replay_adds():
    """no_sync saves 50 with this link, of 470, and 110 with the other, of 590, so of 470 87.6: both ways 10 more."""
    told = ground().predict({"ddp.no_sync": True})
    assert (told.step_ns, told.low_ns, told.high_ns) == (450, round(500 - 110 * 470 / 590 - 10), 450 + 10)
    assert told.ns_per_sample == pytest.approx(450 / 64)


def test_no_change_is_the_measured_step():
    assert ground().predict({"ddp.no_sync": False}).step_ns == 500


@pytest.mark.parametrize("far_off", [{"error_share": 0.11}, {"held_out_share": 0.11}])
def test_beyond_a_tenth_only_a_bound_is_told(far_off):
    told = ground(**far_off).predict({"ddp.no_sync": True})
    assert told.low_ns == 402
    missed = "the unchanged replay misses the measured step by 11 %: only a bound can be told"
    more = "a recording of more traced steps tells more often (--lean 20)"
    assert told.missing["step_ns"] == f"{missed}; {more}"
    many = replace(MODEL, steps={rank: [STEP] * 20 for rank in (0, 1)})
    assert ground(**far_off, model=many).predict({"ddp.no_sync": True}).missing["step_ns"] == missed


def test_what_no_model_tells_of_has_no_bound_either():
    told = ground().predict({"cudnn.benchmark": True})
    assert set(told.missing) >= {"step_ns", "low_ns", "high_ns"}


def test_at_best_is_in_measured_time():
    """Without the exchange 2 * 160 + 50: 100 less, so 400 of the 500."""
    assert ground().told([]).floor_ns == 400


def window(*durations):
    return Window("unprofiled", 0, durations_ns=list(durations))


def test_how_unsure_the_measured_step_is():
    """Two blocks of four steps, 10 and 20: they lie 7.07 apart, over root 2 that is 5, times 6.31 of Student."""
    assert unsure_ns([window(10, 10, 10, 10, 20, 20, 20, 20)]) == pytest.approx(31.55)
    assert unsure_ns([window(10, 10), window(10, 10)]) == 0
    assert unsure_ns([window(10, 20)]) == pytest.approx(31.55)


def test_more_blocks_do_not_tell_what_another_process_takes():
    """Ten blocks of four, 10 and 12 in turn: 1.054 apart, half of it, times 1.83 of Student."""
    assert unsure_ns([window(*([10] * 4 + [12] * 4) * 5)]) == pytest.approx(0.5 * 1.0541 * 1.83, rel=1e-3)

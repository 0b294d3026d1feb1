"""FSDP units that are gathered when they are needed: the rule, on runs made by hand."""

import pytest

from dptune.measured import DelayedFigures
from dptune.runfile.communication import FsdpFacts


@pytest.fixture
def said(ask, make_measured, make_facts, hand_made):
    def say(*fsdp, share=0.08, predictor=None):
        steps_ns = make_measured().account.window_ns
        figures = {"exposed_ns": int(0.2 * steps_ns), "could_hide_ns": int(share * steps_ns), "calls_per_step": 3.0}
        known = {"kinds": ["all_gather"], "streams": [9], "on_compute_stream": False, "group": "0"}
        shares = {"most_share": 0.1, "most_transfer_share": share, "bytes_per_step": 36 * 2**20}
        delay = hand_made.figures(DelayedFigures, cause="not_prefetched", **figures, **known, **shares)
        return ask("DP206", make_measured(delayed=[delay]), [make_facts(fsdp=[*fsdp])], predictor=predictor)

    return say


@pytest.mark.parametrize(
    ("version", "setting"), [(1, "pass forward_prefetch=True"), (2, "call set_modules_to_forward_prefetch()")]
)
def test_units_that_gather_themselves(said, version, setting):
    (advice,) = said(FsdpFacts(version, units=4, where="train.py:31", modules=["Block"], mesh=[2]))
    assert advice.title == (
        "FSDP all-gathers (train.py:31) are not prefetched: compute of the previous unit could hide 8 % of a step. "
        f"To prefetch, {setting}"
    )
    assert (advice.impact, advice.saves.basis, advice.fingerprint) == ("medium", "bound", "DP206:Block")
    assert "memory" in advice.watch


def test_the_replay_predicts_the_saving(said, predict):
    """One unit ahead in both passes leaves 93 % of the step; nothing is proposed where it leaves all but 1 %.

    Intervals are of 5 % either way: one that includes zero is no prediction.
    """
    units = FsdpFacts(2, units=4, modules=["Block"], mesh=[2])
    (advice,) = said(units, predictor=predict("fsdp.prefetch", {True: 0.93}))
    assert (advice.saves.basis, advice.saves.predicted_share) == ("replayed", pytest.approx(0.07))
    assert said(units, predictor=predict("fsdp.prefetch", {True: 0.99})) == []
    (unsure,) = said(units, predictor=predict("fsdp.prefetch", {True: 0.96}))
    assert (unsure.saves.basis, unsure.saves.high_share) == ("bound", pytest.approx(0.1))


def test_quiet(said, ask, make_measured, make_facts):
    units = FsdpFacts(2, units=4)
    assert said(units, share=0.01) == []
    assert said() == []
    assert ask("DP206", make_measured(), [make_facts(fsdp=[units])]) == []

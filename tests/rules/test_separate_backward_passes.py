"""Several passes through one graph: facts are made up."""

import pytest

from dptune.runfile.unused import RepeatedPassFacts
from dptune.runfile.window import Window


def run(make_facts, again_ms=15, **more):
    """5 steps of 10 ms, which spend 6 in backward passes."""
    window = Window("untraced", 3, [10_000_000] * 5, backward_ns=[6_000_000] * 5)
    passes = [RepeatedPassFacts("train.py:69", 4.0, again_ms * 1_000_000)]
    return [make_facts(windows=[window], repeated_passes=passes, **more)]


def test_four_passes_where_one_would_do(ask, make_measured, make_facts):
    (advice,) = ask("DP611", make_measured(device="cpu", world=1), run(make_facts))
    assert advice.title == (
        "train.py:69 runs 4 backward passes through one graph in each step: add the losses, and call backward once"
    )
    assert (advice.saves.low_share, advice.saves.high_share) == (0, pytest.approx(1.2 * 0.3))  # 15 of 50 ms
    assert (advice.impact, advice.confidence) == ("high", "high")


def test_passes_from_several_lines(ask, make_measured, make_facts):
    window = Window("untraced", 3, [10_000_000] * 5, backward_ns=[6_000_000] * 5)
    found = RepeatedPassFacts("train.py:27", 3.0, 15_000_000, also_at=["train.py:28", "train.py:30"])
    facts = [make_facts(windows=[window], repeated_passes=[found])]
    (advice,) = ask("DP611", make_measured(device="cpu", world=1), facts)
    assert advice.title == (
        "train.py:27, train.py:28 and train.py:30 run 3 backward passes through one graph in each step: add the "
        "losses, and call backward once"
    )
    assert advice.evidence[0].value == "train.py:27, train.py:28, train.py:30"


def test_quiet_where_they_take_little(ask, make_measured, make_facts):
    assert ask("DP611", make_measured(device="cpu"), run(make_facts, again_ms=2)) == []
    assert ask("DP611", make_measured(device="cpu"), [make_facts()]) == []


def test_on_a_cpu_what_an_earlier_pass_went_through_is_saved(ask, make_measured, make_facts):
    """15 of 50 ms are later passes, 60 % of them in shared operators. One rank waits for no other."""
    window = Window("untraced", 3, [10_000_000] * 5, backward_ns=[6_000_000] * 5, backward_cpu_ns=[4_000_000] * 5)
    passes = [RepeatedPassFacts("train.py:69", 4.0, 15_000_000, 0.6)]
    facts = [make_facts(windows=[window], repeated_passes=passes)]
    (advice,) = ask("DP611", make_measured(device="cpu", world=1), facts)
    assert advice.saves.basis == "timed"
    low, likely, high = 0.8 * 0.3 * 0.6 * 0.8, 0.3 * 0.6, 1.2 * 0.3 * 0.6 * 1.2
    found = advice.saves.low_share, advice.saves.predicted_share, advice.saves.high_share
    assert found == pytest.approx((low, likely, high))

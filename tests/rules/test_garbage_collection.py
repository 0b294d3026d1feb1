import pytest

from dptune.measured import Missing
from dptune.runfile.garbage_collections import CollectCallFacts
from dptune.runfile.window import Window


def window(share, collections=()):
    return Window("untraced", 3, [10_000_000] * 4, gc_ns=[int(share * 10_000_000)] * 4, collections_ns=collections)


def test_in_each_step_the_rank_that_collects_longest(ask, make_measured, make_facts):
    """Of steps of 10 ms rank 0 collects 0.1 ms and rank 1 0.8: 0.9 at most, should each hold up the other."""
    facts = [make_facts(rank=0, windows=[window(0.01)]), make_facts(rank=1, windows=[window(0.08, [[1, 2], [3, 4]])])]
    (advice,) = ask("DP602", make_measured(exposed_share=0.5), facts)
    assert advice.title == (
        "Python garbage collection takes 8 % of a step: collect at chosen steps, on all ranks at once"
    )
    assert advice.saves.high_ms == pytest.approx(0.9)
    assert (advice.impact, advice.confidence, advice.evidence[0].value) == ("medium", "high", pytest.approx(0.08))
    assert (advice.evidence[1].value, advice.evidence[1].unit) == (2, "in 4 steps")


def test_ranks_that_collect_at_different_moments_hold_up_each_other(ask, make_measured, make_facts):
    """Four ranks collect 3 ms each, in another step of 10 ms each: every step is held up for 3."""
    facts = []
    for rank in range(4):
        collecting = [3_000_000 if step == rank else 0 for step in range(4)]
        facts.append(make_facts(rank=rank, windows=[Window("untraced", 3, [10_000_000] * 4, gc_ns=collecting)]))
    (advice,) = ask("DP602", make_measured(world=4, exposed_share=0.8), facts)
    assert advice.evidence[0].value == pytest.approx(0.3)
    assert advice.saves.high_share == pytest.approx(0.3)
    (advice,) = ask("DP602", make_measured(world=4, exposed_share=0.8, world_size=8), facts)
    assert advice.saves.high_share == pytest.approx(0.6)  # the other four may do as these do
    (advice,) = ask("DP602", make_measured(world=4, exposed_share=0.4, world_size=8), facts)
    assert advice.saves.high_share == pytest.approx(0.4)  # for the rest is computed, whoever collects


def test_quiet(ask, make_measured, make_facts):
    assert ask("DP602", make_measured(), [make_facts(windows=[window(0.015)])]) == []


def test_who_wants_to_hear_of_less_hears_of_less(ask, make_measured, make_facts):
    facts = [make_facts(windows=[window(0.015)])]
    (advice,) = ask("DP602", make_measured(exposed_share=0.5), facts, {"worth_share": 0.01})
    assert advice.impact == "low"
    assert ask("DP602", make_measured(), [make_facts(windows=[window(0.0)])], {"worth_share": 0.0}) == []


def test_it_says_what_it_does_not_know(ask, make_measured, make_facts):
    with pytest.raises(Missing, match="no untraced steps were timed"):
        ask("DP602", make_measured(), [make_facts()])
    with pytest.raises(Missing, match="dptune profile"):
        ask("DP602", make_measured())


def test_a_collection_in_few_steps_is_of_the_mean_step(ask, make_measured, make_facts):
    """One step in four takes 50 ms instead of 10, to collect: 40 of 80 ms, which is 10 ms of the mean step."""
    told = [Window("untraced", 3, [10_000_000, 10_000_000, 10_000_000, 50_000_000], gc_ns=[0, 0, 0, 40_000_000])]
    (advice,) = ask("DP602", make_measured(world=1, exposed_share=0.1), [make_facts(windows=told)])
    assert advice.saves.high_share == pytest.approx(0.5)
    assert (advice.saves.mean_step_ms, advice.saves.high_ms) == (pytest.approx(20), pytest.approx(10))


def test_what_traced_steps_compute_caps_steps_that_collect(ask, make_measured, make_facts):
    """Two ranks collect 20 ms each in one of four steps, at different moments at most: 40 of the 60 ms.

    A traced step of 10 ms holds no collection and computes 9: so 36 of the 60 ms are computed, and 24 are not.
    """
    facts = []
    for rank in range(2):
        took = [10_000_000, 10_000_000, 10_000_000, 30_000_000]
        facts.append(make_facts(rank=rank, windows=[Window("untraced", 3, took, gc_ns=[0, 0, 0, 20_000_000])]))
    (advice,) = ask("DP602", make_measured(exposed_share=0.1), facts)
    assert advice.saves.high_share == pytest.approx(24 / 60)


def test_steps_are_compared_by_their_numbers(ask, make_measured, make_facts):
    """Rank 1 timed from step 5 on: of steps 5 and 6, which both timed, each rank collects in one."""
    windows = [
        Window("untraced", 3, [10_000_000] * 4, gc_ns=[0, 0, 3_000_000, 0]),
        Window("untraced", 5, [10_000_000] * 4, gc_ns=[0, 3_000_000, 0, 0]),
    ]
    facts = [make_facts(rank=rank, windows=[window]) for rank, window in enumerate(windows)]
    (advice,) = ask("DP602", make_measured(exposed_share=0.5), facts)
    assert advice.evidence[0].value == pytest.approx(0.3)
    apart = [make_facts(rank=1, windows=[Window("untraced", 9, [10_000_000] * 4, gc_ns=[3_000_000] * 4)])]
    with pytest.raises(Missing, match="different untraced steps"):
        ask("DP602", make_measured(), [facts[0], *apart])


def test_on_a_cpu_what_the_busiest_rank_is_spared(ask, make_measured, make_facts):
    """Both ranks collect 2 ms of each step of 10: at least four fifths of that, at most 4.4 ms."""
    facts = [make_facts(rank=rank, windows=[window(0.2)]) for rank in (0, 1)]
    (advice,) = ask("DP602", make_measured(device="cpu", exposed_share=0.9), facts)
    assert advice.saves.basis == "timed"
    assert (advice.saves.low_ms, advice.saves.high_ms) == (pytest.approx(0.8 * 2), pytest.approx(1.1 * 4))


def test_the_line_that_asks_for_collections(ask, make_measured, make_facts):
    """Of 0.8 ms in each of 4 steps a line asks for 2.4 of 3.2 ms on rank 1."""
    asking = window(0.08)
    asking.collect_calls = [
        CollectCallFacts("Memory.clean (train.py:9)", calls=3, spent_ns=2_400_000),
        CollectCallFacts("main (train.py:30)", calls=50, spent_ns=100_000),
    ]
    (advice,) = ask("DP602", make_measured(exposed_share=0.5), [make_facts(windows=[asking])])
    assert advice.title == (
        "Python garbage collection takes 8 % of a step: Memory.clean (train.py:9) calls gc.collect() 3 times in 4 "
        "steps. Remove it, or call it every few hundred steps"
    )
    assert (advice.evidence[1].label, advice.evidence[1].value) == ("gc.collect() in Memory.clean (train.py:9)", 3)


def test_the_setting_of_a_library(ask, make_measured, make_facts):
    asking = window(0.08)
    asking.collect_calls = [CollectCallFacts("main (train.py:30)", "accelerate.free_memory", 4, 3_000_000)]
    (advice,) = ask("DP602", make_measured(exposed_share=0.5), [make_facts(windows=[asking])])
    assert "main (train.py:30) calls gc.collect() through accelerate.free_memory 4 times in 4 steps" in advice.title


def test_calls_that_take_little_of_it_are_not_the_cause(ask, make_measured, make_facts):
    asking = window(0.08)
    asking.collect_calls = [CollectCallFacts("main (train.py:30)", calls=3, spent_ns=1_000_000)]
    (advice,) = ask("DP602", make_measured(exposed_share=0.5), [make_facts(windows=[asking])])
    assert "gc.collect" not in advice.title


@pytest.mark.parametrize(
    ("waits_ms", "wait_share", "impact", "confidence"),
    [
        ([2, 2, 2, 2, 10], 0.5, "medium", "medium"),  # the collection of 8 ms is part of the wait
        ([2, 2, 2, 2, 2], 0.5, "high", "high"),  # it runs elsewhere
        ([2, 2, 2, 2, 10], 0.05, "high", "high"),  # the wait is less than the collections
    ],
)
def test_garbage_that_the_loader_makes_comes_after_the_loader(
    ask, make_measured, make_facts, waits_ms, wait_share, impact, confidence
):
    """Of five steps of 10 ms the last holds a collection of 8 ms: 16 % of the time."""
    waits_ns = [ms * 1_000_000 for ms in waits_ms]
    timed = Window("untraced", 3, [10_000_000] * 5, gc_ns=[0, 0, 0, 0, 8_000_000], loader_wait_ns=waits_ns)
    (advice,) = ask("DP602", make_measured(wait_share=wait_share), [make_facts(windows=[timed])])
    assert (advice.impact, advice.confidence) == (impact, confidence)
    assert ("fix the loader first" in advice.watch) == (confidence == "medium")


def collecting(spent_ms, *, calls=()):
    """20 steps of 10 ms; those that collect take as much longer."""
    took = [(10 + ms) * 1_000_000 for ms in spent_ms]
    asked = [CollectCallFacts("train (train.py:9)", calls=5, spent_ns=sum(spent_ms) * 1_000_000)] if calls else []
    return Window("untraced", 3, took, gc_ns=[ms * 1_000_000 for ms in spent_ms], collect_calls=asked)


def test_a_line_that_all_ranks_reach_in_the_same_steps_holds_up_none_twice(ask, make_measured, make_facts):
    """Both ranks collect 8 ms in every fourth step: 40 of 240 ms, whichever rank; amounts and number do not vary."""
    every_fourth = [8, 0, 0, 0] * 5
    facts = [make_facts(rank=rank, windows=[collecting(every_fourth, calls=[1])]) for rank in (0, 1)]
    (advice,) = ask("DP602", make_measured(device="cpu", exposed_share=0.9), facts)
    share = 40 / 240
    assert advice.saves.basis == "timed"
    assert (advice.saves.low_share, advice.saves.high_share) == pytest.approx((0.8 * share, 1.1 * share))
    assert "in the same steps on all ranks" in advice.saves.how


def test_ranks_that_collect_in_other_steps_may_hold_up_each_other(ask, make_measured, make_facts):
    """The same line, but the second rank reaches it two steps later: 80 of 240 ms at most."""
    apart = [[8, 0, 0, 0] * 5, [0, 0, 8, 0] * 5]
    facts = [make_facts(rank=rank, windows=[collecting(ms, calls=[1])]) for rank, ms in enumerate(apart)]
    (advice,) = ask("DP602", make_measured(device="cpu", exposed_share=0.9), facts)
    assert (advice.saves.basis, advice.saves.high_share) == ("bound", pytest.approx(80 / 240))

"""Ranks of a synchronous job: clocks that shift against each other, and steps that took another time."""

from dataclasses import replace

import pytest

from dptune.advise.trust import judge
from dptune.measure.communication.matching import match
from dptune.measure.synchronous import MOST_STEPS, SLACK_NS, uneven_clocks, uneven_steps
from dptune.runfile.communication import DdpFacts
from dptune.runfile.facts import DeviceFacts, Facts
from dptune.runfile.window import Window

from .. import reading  # noqa: TID252 - tests are no installed package
from . import handmade as by_hand
from .test_matching import calls, rank

MS = 1_000_000
REAL = (
    *("torchrec_4xv100", "torchrec_straggler_4xv100", "torchrec_qcomm_a_4xv100", "torchrec_qcomm_b_4xv100"),
    *("torchrec_resnet18_2xv100", "nanogpt_8xh100", "hta_sampled_ranks"),
)


def collectives(*by_ns):
    """Four all-reduces of 0.5 ms every 10 ms on each rank, whose clock is that far ahead in each."""
    ranks = []
    for number, ahead in enumerate(by_ns):
        ran = [
            replace(one, start_ns=at * 10 * MS + ahead[at], dur_ns=MS // 2)
            for at, one in enumerate(calls(["all_reduce"] * 4))
        ]
        ranks.append(rank(number, ran))
    return match(ranks, len(ranks))


def test_a_constant_offset_of_a_clock_is_no_fault():
    assert not uneven_clocks(collectives([0] * 4, [86_400_000 * MS] * 4))


@pytest.mark.parametrize("over_ns", [0, 1])
def test_a_clock_may_shift_by_the_collectives_and_the_slack(over_ns):
    # Bounds of 0.5 ms on both sides: a shift is certain from 1 ms on.
    shift = MS + SLACK_NS + over_ns
    found = uneven_clocks(collectives([0] * 4, [0, 0, shift, shift]))
    assert list(found) == ([1] if over_ns else [])


def test_of_three_ranks_the_one_that_fits_no_other_is_named():
    (culprit,) = (found := uneven_clocks(collectives([0] * 4, [0] * 4, [0, 0, 1000 * MS, 1000 * MS]))).values()
    assert list(found) == [2]
    assert culprit.fatal
    assert "shifts by at least 999.0 ms relative to that of rank 0" in culprit.text


def test_a_rank_that_comes_late_has_no_other_clock():
    first = rank(0, calls(["all_reduce"] * 4))
    late = rank(1, calls(["all_reduce"] * 4, late=[0, 400, 0, 400]))
    assert not uneven_clocks(match([first, late], 2))


def facts(number, durations, first=5, **changed):
    known = {
        "world_size": 2,
        "device": DeviceFacts(kind="cpu"),
        "ddp": [DdpFacts(module="M", ranks=[0, 1])],
        "windows": [Window(name="untraced", first_step=first, durations_ns=durations, complete=True)],
    }
    return Facts(rank=number, **{**known, **changed})


def uneven(first, second):
    return uneven_steps({0: first, 1: second})


def test_halved_times_of_a_rank():
    (loss,) = (found := uneven(facts(0, [10 * MS] * 20), facts(1, [5 * MS] * 20))).values()
    assert list(found) == [1]
    assert loss.fatal
    assert "steps 5 to 24 took 100.0 ms" in loss.text
    assert "those of rank 0 200.0 ms" in loss.text


def test_only_steps_of_both_count():
    (loss,) = uneven(facts(0, [10 * MS] * 20), facts(1, [20 * MS] * 20, first=15)).values()
    assert "steps 15 to 24 took 200.0 ms" in loss.text
    assert "rank 0 100.0 ms" in loss.text


@pytest.mark.parametrize("over_ns", [0, 1])
def test_a_rank_leads_by_two_steps_at_most(over_ns):
    longer = [10 * MS, 10 * MS + MOST_STEPS * 10 * MS + over_ns] + [10 * MS] * 18
    assert bool(uneven(facts(0, [10 * MS] * 20), facts(1, longer))) == bool(over_ns)


def test_a_rank_that_begins_early_or_saves_alone_between_steps_is_synchronous():
    early = [500 * MS] + [10 * MS] * 19
    first, second = [10 * MS] * 20, [10 * MS] * 20
    for at in (4, 11, 18):  # rank 0 saves after its step; rank 1 waits in the next
        first[at] = second[at + 1] = 900 * MS
    assert not uneven(facts(0, [10 * MS] * 20), facts(1, early))
    assert not uneven(facts(0, first), facts(1, second))


@pytest.mark.parametrize(
    "changed",
    [
        {"ddp": []},
        {"averages_models": True},
        {"world_size": 4},
        {"ddp": [DdpFacts(module="M", ranks=[1])]},
        {"device": DeviceFacts(kind="cuda")},  # the host of a GPU runs ahead
    ],
)
def test_ranks_that_do_not_wait_for_each_other_may_take_another_time(changed):
    assert not uneven(facts(0, [10 * MS] * 20), facts(1, [5 * MS] * 20, **changed))


def traced(jump_us):
    """Four steps of 10 ms: 4 ms of compute, then an all-reduce of 0.4 ms; the clock jumps after the second."""
    events = []
    for at in range(4):
        start = 10_000 * at + (jump_us if at > 1 else 0)
        events += [
            by_hand.step(at, start, start + 10_000),
            *by_hand.launched("gemm", start + 10, start + 100, start + 4_000, 2 * at + 1),
            *by_hand.launched(by_hand.NCCL, start + 20, start + 4_000, start + 4_400, 2 * at + 2, stream=20),
        ]
    return events


@pytest.mark.parametrize(("jump_us", "level"), [(0, "sound"), (50_000, "unjudgeable")])
def test_a_run_with_a_clock_that_jumps_cannot_be_judged(tmp_path, jump_us, level):
    trust = judge(by_hand.measure_events(tmp_path, traced(0), traced(jump_us)), [])
    assert trust.level == level
    texts = [one.text for one in trust.findings if one.code == "clock-uneven"]
    assert [text.startswith("rank 1: its clock shifts by at least 49.2 ms") for text in texts] == [True] * bool(jump_us)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.thorough if name == "torchrec_qcomm_b_4xv100" else ()) for name in REAL],
)
def test_real_ranks_are_synchronous(real_traces, name):
    found = reading.measured(real_traces / name)
    assert not [loss for own in found.ranks for loss in own.losses if loss.code == "clock-uneven"]

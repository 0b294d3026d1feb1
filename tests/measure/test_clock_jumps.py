"""A clock that jumps back within a rank is named, and no figure rests on that rank.

A rank makes five steps of 1,000 us, each with eight launches 10 us apart and their kernels of 80 us.
"""

import pytest

from dptune.advise.trust import judge
from dptune.measure import measure

from .handmade import kernel, launch, load_events, operator, step


def rank():
    events = []
    for number in range(5):
        begin = 1000 * number
        events.append(step(number, begin, begin + 1000))
        for at in range(8):
            correlation, start = 10 * number + at, begin + 100 + 80 * at
            events += [
                launch(correlation, begin + 10 * at + 1, begin + 10 * at + 3),
                kernel("gemm", start, start + 80, correlation),
            ]
    return events


def operators():
    """The steps of a rank that computes on its CPU, ten numbered operators in each."""
    steps = [step(number, 1000 * number, 1000 * number + 1000) for number in range(5)]
    return steps + [
        {**operator("aten::mm", 100 * at, 100 * at + 90), "args": {"External id": at + 1}} for at in range(50)
    ]


def set_back(events, at_us, by_us):
    """The clock is set back by `by_us` at a time: all that begins from then on bears an earlier one."""
    return [{**one, "ts": one["ts"] - by_us} if one["ts"] >= at_us else one for one in events]


def findings(folder, *ranks):
    measured = measure(load_events(folder, *ranks))
    trust = judge(measured, [])
    return measured, {one.code: one for one in trust.findings if one.level == "unjudgeable"}


@pytest.mark.parametrize("at_us", [2000, 2040, 4040])  # between two steps, within one, within the last
@pytest.mark.parametrize(("by_us", "said"), [(500_000, "500.0 ms"), (3_000, "3.00 ms")])
@pytest.mark.parametrize("events", [rank, operators])
def test_a_clock_that_is_set_back(tmp_path, at_us, by_us, said, events):
    good = events()
    at_us = at_us if events is rank else round(at_us, -2)
    bad = set_back(good, at_us, by_us)
    measured, wrong = findings(tmp_path, good, bad)
    assert list(wrong) == ["clock-backwards"]
    jump = float(wrong["clock-backwards"].text.split(" by ")[1].split(" ms")[0])
    assert wrong["clock-backwards"].text.startswith("rank 1: timestamps jump back by ")
    assert by_us / 1000 - 1 <= jump <= by_us / 1000  # less what passed between the two calls
    assert measured.ranks[1].devices == []


def test_on_both_ranks_it_is_named_once(tmp_path):
    bad = set_back(rank(), 2040, 500_000)
    _, wrong = findings(tmp_path, bad, bad)
    assert wrong["clock-backwards"].text.endswith("so no step can be timed (the same on rank 1)")


def test_steps_that_overlap(tmp_path):
    events = [{**one, "dur": 1300} if one["name"].startswith("ProfilerStep") else one for one in rank()]
    _, wrong = findings(tmp_path, events)
    assert wrong["steps-overlap"].text == "rank 0: the marked steps overlap by up to 0.30 ms, so no step can be timed"


def test_steps_that_all_start_at_one_time(tmp_path):
    events = [
        {**one, "ts": 0, "dur": one["ts"] + one["dur"]} if one["name"].startswith("ProfilerStep") else one
        for one in rank()
    ]
    measured, wrong = findings(tmp_path, events)
    marked = sum(one["name"].startswith("ProfilerStep") for one in events)
    assert wrong["steps-overlap"].text == (
        f"rank 0: {marked - 1} of {marked} marked steps contain other steps, so no step can be timed"
    )
    assert measured.step.known("time_ns") is None
    assert measured.known("efficiency") is None


@pytest.mark.parametrize(("length_us", "usable"), [(0.5, False), (2.0, True)])
def test_steps_shorter_than_a_launch(tmp_path, length_us, usable):
    """Each launches a kernel; the kernels run one after the other, as far apart as steps of 100 us."""
    events = []
    for number in range(6):
        start = number * length_us
        events += [step(number, start, start + length_us)]
        events.append(launch(number + 1, start + 0.1, start + 0.3))
        events.append(kernel("gemm", 100 * number + 10, 100 * number + 60, number + 1))
    measured, wrong = findings(tmp_path, events)
    assert (measured.step.known("time_ns") is not None) == usable
    assert (measured.known("efficiency") is not None) == usable
    assert (
        [one.text for one in wrong.values()] == []
        if usable
        else ["rank 0: the marked steps take 0.5 us, too short for a training step, so no step can be timed"]
    )


@pytest.mark.parametrize(
    "events",
    [
        rank(),
        operators(),
        rank()[::-1],  # a file in another order
        [
            *rank(),
            launch(9000, 2500, 2501),
            kernel("late", 2900, 2950, 9000),
        ],  # added at the end, with a number of its own
        set_back(rank(), 5000, 500_000),
    ],
)
def test_times_in_order_are_no_jump(tmp_path, events):
    measured, wrong = findings(tmp_path, events)
    assert wrong == {}
    assert measured.ranks[0].losses == []


@pytest.mark.parametrize("marked", [True, False])
def test_a_call_out_of_order_in_every_step_is_no_jump(tmp_path, marked):
    """The first call of each step of 5 ms begins 2 ms after the second, in file and number before it."""
    events = []
    for number in range(6):
        begin = 5000 * number
        events += [step(number, begin, begin + 5000)] if marked else []
        for at, called in enumerate((3000, 1000, 1010, 1020)):
            correlation = 10 * number + at
            events += [
                launch(correlation, begin + called, begin + called + 2),
                kernel("gemm", begin + 3100 + 80 * at, begin + 3180 + 80 * at, correlation),
            ]
    _, wrong = findings(tmp_path, events)
    assert "clock-backwards" not in wrong

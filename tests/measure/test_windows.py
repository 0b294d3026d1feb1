"""Windows of steps on a device: they follow one another, whatever a side stream runs ahead. Times in microseconds.

The host marks a step every 10 from 0 on and is ahead of the device, which begins at 1000.
"""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptune.measure import measure
from dptune.measure.views import view

from .handmade import NCCL, US, copy, launch, launched, load_events, measure_events, step

HTOD = "HtoD (Pinned -> Device)"
KINDS = {"gemm": 7, NCCL: 13, "copy": 20}  # and the stream of each


def run_of(steps):
    """Of each step what it launched, in order: (kind, start, end) on the device."""
    events = []
    for number, ran in enumerate(steps):
        events.append(step(number, 10 * number, 10 * number + 10))
        for at, (kind, start, end) in enumerate(ran):
            called, correlation = 10 * number + 1 + at, 10 * number + at
            if kind == "copy":
                ran_there = [launch(correlation, called, called + 1), copy(HTOD, start, end, correlation, stream=20)]
            else:
                ran_there = launched(kind, called, start, end, correlation, KINDS[kind])
            events += ran_there
    return events


def gemm(number):
    """90 of every 100."""
    return ("gemm", 1000 + 100 * number, 1090 + 100 * number)


def windows_of(tmp_path, steps):
    (device,) = view(0, load_events(tmp_path, run_of(steps)).ranks[0].light).devices
    found = [(window.number, window.start_ns / US, window.end_ns / US) for window in device.windows]
    return found, device.launched_in.tolist()


EVEN = [(number, 1000 + 100 * number, 1100 + 100 * number) for number in range(5)] + [(5, 1500, 1590)]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("ahead", [150, 250])
def test_a_copy_that_runs_ahead_of_the_step_before_begins_no_window(tmp_path, first, ahead):
    """Steps 2 and 4 copy 150 or 250 before their kernel, launched before or after it: steps of 100 all the same."""
    steps = [[gemm(number)] for number in range(6)]
    for number in (2, 4):
        start = 1000 + 100 * number - ahead
        steps[number].insert(0 if first else 1, ("copy", start, start + 10))
    assert windows_of(tmp_path, steps)[0] == EVEN
    measured = measure_events(tmp_path, run_of(steps))
    account = measured.account
    assert (account.window_ns, account.compute_ns) == (590 * US, 540 * US)
    assert account.copy_ns == 0  # beside kernels, or before the first step
    assert (account.idle_ns, measured.step.light_median_ns) == (50 * US, 100 * US)
    assert measured.step.time_ns == round(590 * US / 6)  # the mean of what the account is of


def test_a_copy_that_begins_after_the_step_before_begins_the_window(tmp_path):
    """By rule: from the first operation that the step launched, here the copy at 1150."""
    steps = [[gemm(0)], [gemm(1)], [("copy", 1150, 1160), gemm(2)], [gemm(3)]]
    found, _ = windows_of(tmp_path, steps)
    assert found == [(0, 1000, 1100), (1, 1100, 1150), (2, 1150, 1300), (3, 1300, 1390)]


def test_a_step_of_which_everything_runs_before_the_step_before_has_no_window(tmp_path):
    """Step 2 only copies, at 1050: it belongs to no step, and step 1 lasts until step 3 begins."""
    steps = [[gemm(0)], [gemm(1)], [("copy", 1050, 1060)], [gemm(3)]]
    found, launched_in = windows_of(tmp_path, steps)
    assert found == [(0, 1000, 1100), (1, 1100, 1300), (3, 1300, 1390)]
    assert sorted(launched_in) == [-1, 0, 1, 3]
    assert measure_events(tmp_path, run_of(steps)).steps.without_work == 1


def test_steps_without_work_between_others_are_counted(tmp_path):
    """Every other step launches nothing, the first and the last neither: four windows with three such between them."""
    steps = [[], *([gemm(number)] if number % 2 else [] for number in range(1, 9))]
    measured = measure_events(tmp_path, run_of(steps))
    assert (measured.steps.by_rank, measured.steps.without_work) == ({0: 4}, 3)
    assert (measured.step.light_median_ns, measured.step.time_ns) == (200 * US, (3 * 200 + 90) * US / 4)
    assert measure_events(tmp_path, run_of([[gemm(number)] for number in range(4)])).steps.without_work == 0


OPERATION = st.tuples(st.sampled_from(sorted(KINDS)), st.integers(-250, 250), st.integers(0, 120))
STEPS = st.lists(st.lists(OPERATION, max_size=4), min_size=1, max_size=8)


@pytest.mark.long
@given(STEPS)
def test_no_microsecond_is_counted_twice(tmp_path_factory, offsets):
    """Operations up to two and a half steps early or late: the account equals a count microsecond by microsecond."""
    steps = [
        [(kind, 1000 + 100 * number + by, 1000 + 100 * number + by + long) for kind, by, long in own]
        for number, own in enumerate(offsets)
    ]
    run = load_events(tmp_path_factory.mktemp("run"), run_of(steps))
    for device in view(0, run.ranks[0].light).devices:
        found = [(window.number, window.start_ns // US, window.end_ns // US) for window in device.windows]
        assert all(number < later and end <= start for (number, _, end), (later, start, _) in pairwise(found))
        assert all(start in {begin for _, begin, _ in steps[number]} and start < end for number, start, end in found)
    measured = measure(run)
    for device in (device for rank in measured.ranks for device in rank.devices if device.steps):
        ran = {
            kind: {at for own in steps for what, *span in own if what == kind for at in range(*span)} for kind in KINDS
        }
        inside = {
            at for one in device.steps for at in range(one.start_ns // US, (one.start_ns + one.account.window_ns) // US)
        }
        total = sum((one.account for one in device.steps[1:]), device.steps[0].account)
        assert total.window_ns == len(inside) * US <= device.whole.window_ns
        assert total.compute_ns == len(ran["gemm"] & inside) * US <= len(ran["gemm"]) * US
        assert total.exposed_communication_ns == len((ran[NCCL] - ran["gemm"]) & inside) * US
        assert total.copy_ns == len((ran["copy"] - ran["gemm"] - ran[NCCL]) & inside) * US

"""Steps that take turns are groups, not noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dptune.advise.trust import judge
from dptune.measure import measure
from dptune.measure.steps.groups import Turns, groups, period
from dptune.measure.views import view
from dptune.trace import load
from dptune.whatif.gpu.recorded import program_of

from .handmade import US, Event, launched, load_events, measure_events, step


def taking_turns(lengths: list[int], *, optimizers: dict[int, int]) -> list[Event]:
    """Steps of a kernel each; those of `optimizers` launch as many more, of 1 us each."""
    events: list[Event] = []
    at = 0
    for number, length in enumerate(lengths):
        events += [step(number, at, at + length)]
        events += launched("forward", at, at + 2, at + length, 1000 * number)
        for place in range(optimizers.get(number, 0)):
            begin = at + length - 10 + place
            events += launched("adam", at + 1, begin, begin + 1, 1000 * number + place + 1, stream=8)
        at += length
    return [*events, *launched("forward", at, at + 2, at + 10, 9999)]


def test_an_optimizer_every_second_step(tmp_path: Path) -> None:
    figures = measure_events(tmp_path, taking_turns([100, 120, 100, 120, 100, 120], optimizers={1: 5, 3: 5, 5: 5}))
    found = [(group.numbers, group.mean_ns) for group in figures.steps.groups]
    assert found == [([0, 2, 4], 100 * US), ([1, 3, 5], 120 * US)]


def test_an_optimizer_every_third_step_makes_two_groups(tmp_path: Path) -> None:
    lengths = [100, 100, 130, 100, 100, 130, 100]
    figures = measure_events(tmp_path, taking_turns(lengths, optimizers={2: 5, 5: 5}))
    assert [group.numbers for group in figures.steps.groups] == [[0, 1, 3, 4], [2, 5]]
    assert (figures.steps.period, figures.steps.surplus) == (3, [6])


@pytest.mark.parametrize("count", [3, 4, 5, 8, 9, 10])
def test_the_mean_is_over_whole_periods(tmp_path: Path, count: int) -> None:
    """The optimizer steps in every second step, of 120: (100 + 120) / 2, however many steps were recorded."""
    lengths = [100, 120, 100, 120, 100, 120, 100, 120, 100, 120][:count]
    figures = measure_events(tmp_path, taking_turns(lengths, optimizers=dict.fromkeys(range(1, count, 2), 5)))
    assert figures.step.time_ns == 110 * US
    assert figures.account.window_ns == 220 * US * (count // 2)
    assert (figures.steps.period, figures.steps.surplus) == (2, [count - 1] if count % 2 else [])


def test_steps_that_launch_the_same_take_turns_in_time(tmp_path: Path) -> None:
    """Every second step takes 130: of nine steps the last completes no period."""
    figures = measure_events(tmp_path, taking_turns([100, 130, 101, 131, 100, 130, 101, 131, 100], optimizers={}))
    assert (figures.steps.grouped_by, figures.steps.period, figures.steps.surplus) == ("time", 2, [8])
    assert [group.numbers for group in figures.steps.groups] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert figures.step.time_ns == 115.5 * US


def test_noise_in_traced_times_is_no_turn(tmp_path: Path) -> None:
    """Recorded on a CPU: quartiles of every second step lie close together, yet quick and slow steps overlap."""
    lengths = [116, 120, 126, 115, 117, 128, 120, 115, 120, 117, 118, 116]
    figures = measure_events(tmp_path, taking_turns(lengths, optimizers={}))
    assert (figures.steps.groups, figures.steps.period, figures.steps.surplus) == ([], 1, [])


def test_a_period_goes_on_after_a_step_that_is_excluded(tmp_path: Path) -> None:
    """Step 4 takes 900. Steps 0 to 3 and 5 to 8 are whole periods, to step 9 the next is missing."""
    lengths = [100, 120, 100, 120, 900, 120, 100, 120, 100, 120]
    figures = measure_events(tmp_path, taking_turns(lengths, optimizers=dict.fromkeys(range(1, 10, 2), 5)))
    assert [step.number for step in figures.steps.set_aside] == [4]
    assert [group.numbers for group in figures.steps.groups] == [[0, 2, 6, 8], [1, 3, 5, 7]]
    assert figures.steps.surplus == [9]
    assert figures.step.time_ns == 110 * US
    said = {one.code: one.text for one in judge(figures, []).findings}
    assert said["steps-surplus"] == (
        "traced step 9 is excluded from all figures: steps alternate with a period of 2, which it does not complete"
    )


def test_one_of_three_steps_that_differs_is_no_period_without_an_optimizer(tmp_path: Path) -> None:
    events = [*taking_turns([100, 120, 100], optimizers={})]
    events += [event for at in range(5) for event in launched("extra", 101, 150 + at, 151 + at, 50 + at, stream=8)]
    figures = measure_events(tmp_path, events)
    assert (figures.steps.groups, figures.steps.period, figures.steps.surplus) == ([], 1, [])


def test_steps_that_drift_have_no_groups(tmp_path: Path) -> None:
    """100, 96, 103 and 98 operations: steps two apart are 97 % alike, and so are the first two, nearly (96 %)."""
    figures = measure_events(tmp_path, taking_turns([400] * 4, optimizers={0: 99, 1: 95, 2: 102, 3: 97}))
    assert figures.steps.groups == []


def test_a_group_of_which_the_first_rank_has_no_step_is_left_out(tmp_path: Path) -> None:
    """Of a period of three, the first rank recorded two steps; the window of the last begins with its kernel."""
    run = load_events(tmp_path, taking_turns([100, 120], optimizers={}))
    views = [view(rank.rank, rank.light) for rank in run.ranks]
    found = groups(views, Turns(3, [[0], [1], [2]], "time"))
    assert [(group.numbers, group.mean_ns) for group in found] == [([0], 100 * US), ([1], 118 * US)]


@pytest.mark.parametrize("optimizers", [{}, dict.fromkeys(range(6), 5), {2: 5}, {1: 5, 2: 5, 4: 5}])
def test_steps_that_do_the_same_or_differ_at_random_have_no_groups(tmp_path: Path, optimizers: dict[int, int]) -> None:
    figures = measure_events(tmp_path, taking_turns([100] * 6, optimizers=optimizers))
    assert figures.steps.groups == []


def test_a_replay_of_half_of_the_steps_has_half_of_each_group(tmp_path: Path) -> None:
    """The steps of one half are as long as those of the other: nothing is held out that another step would not miss."""
    run = load_events(tmp_path, taking_turns([100, 120] * 4, optimizers={1: 5, 3: 5, 5: 5, 7: 5}))
    program = program_of(run, measure(run))
    groups = [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert program.halves_ns() == (100 * US, 120 * US)
    assert program.halves_ns(groups) == (110 * US, 110 * US)
    assert program.halves_ns([[number] for number in range(8)]) == (100 * US, 120 * US)  # groups of one step each


@pytest.mark.parametrize(
    ("durations", "every"),
    [
        ([10, 20] * 10, 2),
        ([10, 10, 10, 40] * 5, 4),
        ([10, 10, 40] * 6, 3),
        ([10] * 20, 1),
        ([10, 20, 20, 10, 20, 10, 10, 20, 20, 20, 10, 10], 1),
        ([10, 20] * 3, 1),  # two kinds of steps, three of each: that may be chance
        ([], 1),
    ],
)
def test_the_period_of_times(durations: list[int], every: int) -> None:
    assert period([1_000_000 * one for one in durations]) == every


@pytest.mark.long
def test_noise_has_no_period() -> None:
    drawn = np.random.default_rng(1)
    for _ in range(200):
        took = drawn.normal(100, 12, size=int(drawn.integers(8, 40)))
        assert period((took * 1e6).astype(np.int64).tolist()) == 1


def test_the_public_run_whose_adam_steps_every_second_time(real_traces: Path) -> None:
    figures = measure(load(sorted((real_traces / "nanogpt_adam_hook_h100").glob("3608dcf*"))))
    assert [group.numbers for group in figures.steps.groups] == [[10, 12], [11, 13]]

"""The wait for the loader, on the basis of the account: the same steps, the same step time, all ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptune.measure import measure

from .handmade import LOADER, US, Event, annotation, launched, load_events, measure_events, step


def synchronous(waits: list[int]) -> list[Event]:
    """Steps that wait for the loader and compute for 50 from 2 after that; the next begins as the device ends."""
    events: list[Event] = []
    at = 0
    for number, wait in enumerate(waits):
        end = at + wait + 52
        events += [step(number, at, end), annotation(LOADER, at, at + wait)]
        events += launched("k", at + wait, at + wait + 2, end, number)
        at = end
    wait = waits[-1]
    return [*events, annotation(LOADER, at, at + wait), *launched("k", at + wait, at + wait + 2, at + wait + 3, 99)]


def test_a_host_that_runs_ahead_does_not_make_the_loader_a_larger_share(tmp_path: Path) -> None:
    """Host steps of 20, of which the loader takes 5; kernels of 100, the first from 12 on: 4 loaders in 500."""
    events: list[Event] = []
    for number in range(5):
        at = 20 * number
        events += [step(number, at, at + 20), annotation(LOADER, at, at + 5)]
        events += launched("k", at + 10, 12 + 100 * number, 112 + 100 * number, number)
    figures = measure_events(tmp_path, events)
    assert figures.step.time_ns == 100 * US
    assert figures.input.wait_share == pytest.approx(20 / 500)
    assert figures.input.wait_ns == 4 * US
    assert figures.ranks[0].loader_wait_share == pytest.approx(20 / 500)


def test_the_wait_is_the_mean_over_ranks_as_the_account_is(tmp_path: Path) -> None:
    """Windows of 100, 60 and 60, with 48, 8 and 8 in the loader: 64 of 220, all of it with the device idle."""
    figures = measure(load_events(tmp_path, *(synchronous([wait] * 6) for wait in (48, 8, 8))))
    assert figures.input.wait_share == pytest.approx(64 / 220)
    assert figures.input.wait_ns == round(64 * US / 3)
    assert figures.share("input_idle_ns") == figures.input.wait_share
    assert [rank.loader_wait_share for rank in figures.ranks] == pytest.approx([48 / 100, 8 / 60, 8 / 60])


def test_a_wait_in_a_step_that_is_excluded_does_not_count(tmp_path: Path) -> None:
    """The loader takes 8 of each window of 60, once 500: in the window of step 3, which ends as step 4 begins."""
    figures = measure_events(tmp_path, synchronous([8, 8, 8, 8, 500, 8, 8, 8]))
    (aside,) = figures.steps.set_aside
    assert (aside.number, aside.length_ns, aside.loader_wait_ns) == (3, 552 * US, 500 * US)
    assert aside.spent == "0.50 ms of it waiting for the data loader"
    assert figures.input.wait_share == figures.share("input_idle_ns") == pytest.approx(8 / 60)
    assert figures.input.wait_ns == 8 * US

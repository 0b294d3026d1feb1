"""Traced steps are compared with those like them, by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dptune.measure import measure
from dptune.measure.views import RankView, light_views
from dptune.trace.run import Run
from dptune.whatif.gpu.held_out import held_out
from dptune.whatif.gpu.program import Program
from dptune.whatif.run_model import RunModel

from ..measure.handmade import US, call, kernel, launch, load_events, step  # noqa: TID252 - tests are no installed package


def run_of(folder: Path, steps_us: list[int], freeing: tuple[int, ...]) -> Run:
    """Steps whose kernel the host waits for, one after the other; in some the allocator frees memory."""
    events: list[dict[str, Any]] = []
    at = 0
    for number, length in enumerate(steps_us):
        events += [step(number, at, at + length), launch(number, at, at + 2)]
        events.append(kernel("a", at + 5, at + length - 5, number))
        if number in freeing:
            events.append(call("cudaFree", at + 10, at + 20))
        at += length
    return load_events(folder, events)


def views(run: Run) -> list[RankView]:
    return [*light_views(run)]


def test_a_step_in_which_the_allocator_frees_memory_is_compared_with_none(tmp_path: Path) -> None:
    """140, 370 and 138 us: the last has no next step, and takes as long as on the host. 140 and 138 are 2 apart."""
    run = run_of(tmp_path, [140, 370, 138], (1,))
    found = held_out(views(run), [])
    assert found.share == pytest.approx(2 / 139)
    assert dict(found.freeing_ns) == {1: 370 * US}
    assert found.usual_ns == 139 * US
    assert "step 1 (0.37 ms; other steps 0.14 ms)" in found.sentence
    slow = replace(found, freeing_ns={5: 1_171_700_000.0}, usual_ns=1_055_000_000.0)
    assert "step 5 (1,172 ms; other steps 1,055 ms)" in slow.sentence
    model = RunModel.of(run, measure(run))
    assert model.variation_share == pytest.approx(2 / 139)
    assert model.result([]).limits == [found.sentence]


def test_steps_are_as_many_of_a_kind_as_were_recorded(tmp_path: Path) -> None:
    """The last of three is no step of the program: one like it counts twice, and that with `cudaFree` once."""
    run = run_of(tmp_path, [140, 370, 138], (1,))
    model = RunModel.of(run, measure(run)).model
    assert isinstance(model, Program)
    assert [step.number for step in model.steps] == [0, 1]
    assert model.again == [0]
    assert model.recorded_step_ns() == pytest.approx((2 * 140 + 370) / 3 * US)
    found = held_out(views(run), [])
    assert found.alike([1, 2]) == [2]
    assert found.alike([1]) == [], "none of its kind"
    assert found.alike([0, 1, 2]) == []


def test_steps_that_all_free_memory_are_alike(tmp_path: Path) -> None:
    found = held_out(views(run_of(tmp_path, [140, 370, 138], (0, 1, 2))), [])
    assert found.alike([0, 1]) == []
    assert found.share == pytest.approx(231 / 140)  # 139 of the first and third, 370 of the second
    assert not found.freeing_ns
    assert not found.sentence


def test_steps_of_a_turn_are_compared_with_each_other(tmp_path: Path) -> None:
    found = held_out(views(run_of(tmp_path, [100, 200, 102, 202], ())), [[0, 2], [1, 3]])
    assert found.share == pytest.approx((2 * 2 + 2 * 2) / (2 * 101 + 2 * 201))


def test_no_two_steps_alike(tmp_path: Path) -> None:
    assert held_out(views(run_of(tmp_path, [140, 370], (1,))), []).share is None

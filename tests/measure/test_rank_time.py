"""All ranks on one clock, and the nested ranges of a rank's threads, on recordings."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dptune.measure.device.operations import Operations, operations
from dptune.measure.figures import measure
from dptune.measure.host_ranges import HostRanges
from dptune.measure.lanes import RankLanes
from dptune.measure.rank_time import SHOWN, RunTime
from dptune.trace import load
from dptune.trace.events import Trace
from dptune.trace.run import Run

from .. import reading  # noqa: TID252 - tests are no installed package
from .handmade import US, annotation, launched, load_events, operator, step

SAMPLES = Path(__file__).parents[2] / "sample_traces"


@pytest.fixture(scope="module")
def run() -> Run:
    return reading.sample("accumulation_without_no_sync")[0]


def test_shares_of_a_step_are_those_of_the_account(run: Run) -> None:
    """The cells of a step sum to what the report says of it."""
    report = reading.sample("accumulation_without_no_sync")[1]
    run_time = RunTime(run)
    for rank in report.measured.ranks:
        of_rank = run_time.ranks[rank.rank]
        (device,) = rank.devices
        for window, accounted in zip(of_rank.steps, device.steps, strict=True):
            assert window.number == accounted.number
            cuts = np.linspace(window.start_ns, window.end_ns, 60).astype(np.int64)
            shares = of_rank.shares(cuts)
            for name in SHOWN:
                spent_ns = float((shares[name] * np.diff(cuts)).sum())
                assert spent_ns == pytest.approx(getattr(accounted.account, name), abs=window.length_ns * 1e-6)


def test_what_measuring_looked_at_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps and devices of each rank are found once, for the figures and for the timeline.

    Those of a detailed window are found once for its shapes and once for all else.
    """
    found: list[str] = []

    def counted(trace: Trace) -> list[Operations]:
        found.append(Path(trace.path).name)
        return operations(trace)

    monkeypatch.setattr("dptune.measure.views.operations", counted)
    run = load([SAMPLES / "accumulation_without_no_sync"], cached=False)
    measure(run)
    measured = len(found)
    RunTime(run)
    assert {Path(rank.light.path).name for rank in run.ranks} <= {*found}
    assert len(found) == measured
    assert max(Counter(found).values()) == 2


def test_nothing_is_known_outside_of_the_recording(run: Run) -> None:
    run_time = RunTime(run)
    _, last = run_time.recorded_ns
    shares = run_time.ranks[0].shares(np.array([last + 10, last + 1_000], dtype=np.int64))
    assert all(float(share[0]) == 0.0 for share in shares.values())


def test_a_clock_that_is_a_day_off_is_placed_by_its_collectives(run: Run) -> None:
    """The second rank began, by its clock, a day later."""
    first, second = run.ranks
    moved = replace(second, light=replace(second.light, base_ns=second.light.base_ns + 86_400_000_000_000))
    run_time = RunTime(replace(run, ranks=[first, moved]))
    late = run_time.ranks[second.rank]
    begun = {step.number: step.start_ns for step in run_time.ranks[first.rank].steps}
    apart_ns = [abs(step.start_ns - begun[step.number]) for step in late.steps]
    assert apart_ns
    assert max(apart_ns) < 1e9


@pytest.mark.parametrize(
    ("later", "number", "ahead"),
    [
        (5_000, 2, 4_900),  # step 2 is the first of both: it begins at 100, and on the other rank at 5,000
        (5_000, 7, 5_000),  # no step of both: the first events, at 0 and 5,000
    ],
)
def test_ranks_without_common_collectives_are_placed_by_steps_else_by_first_events(
    tmp_path: Path, later: int, number: int, ahead: int
) -> None:
    first = [step(1, 0, 100), step(2, 100, 200), *launched("gemm", 110, 120, 150, 1)]
    other = [step(number, later, later + 100), *launched("gemm", later + 10, later + 20, later + 50, 1)]
    run_time = RunTime(load_events(tmp_path, first, other))
    assert [rank.aligned for rank in run_time.ranks.values()] == [True, False]
    assert run_time.ranks[1].offset_ns - run_time.ranks[0].offset_ns == -ahead * US
    assert run_time.step(99) is None


def test_events_of_a_thread_nest_by_containment(run: Run) -> None:
    lanes = RankLanes(run, 0)
    step = lanes.steps[2]
    thread, *_ = lanes.host.between(step.start_ns, step.end_ns)
    around = []
    for event in thread.events:
        around = around[: event.depth]
        assert len(around) == event.depth
        assert all(outer.start_ns <= event.start_ns and outer.end_ns > event.start_ns for outer in around)
        around.append(event)
    assert thread.label == "python"
    assert max(event.depth for event in thread.events) >= 3
    names = [event.name for event in thread.events]
    assert f"ProfilerStep#{step.number}" in names
    assert "Optimizer.step#AdamW.step" in names


def test_the_path_at_a_moment_leads_to_the_innermost(run: Run) -> None:
    lanes = RankLanes(run, 0)
    columns = run.ranks[0].light.columns
    (row, *_) = columns.rows(named=lambda name: name == "aten::addmm").tolist()
    at = int(columns.ts_ns[row]) + int(columns.dur_ns[row]) // 2
    path = lanes.host.path(at)
    assert path[0].name.startswith("ProfilerStep#")
    assert "aten::addmm" in [event.name for event in path]
    assert all(event.start_ns <= at < event.end_ns for event in path)
    assert [event.depth for event in path] == [*range(len(path))]


def test_without_steps_the_thread_with_most_events_comes_first(tmp_path: Path) -> None:
    """Thread 2 has three operators, one in the other, and thread 1 one that lasts longer."""
    nested = [operator(name, at, 100 - at, thread=2) for at, name in enumerate(("outer", "middle", "inner"))]
    host = HostRanges(load_events(tmp_path, [operator("alone", 0, 900), *nested]).ranks[0].light)
    assert [event.name for event in host.path(50 * US)] == ["outer", "middle", "inner"]
    assert [[event.name for event in thread.events] for thread in host.between(0, 900 * US)] == [
        ["outer", "middle", "inner"],
        ["alone"],
    ]


def test_what_is_nested_too_deeply_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dptune.measure.host_ranges._MOST_DEEP", 2)
    names = ("outer", "middle", "inner")
    host = HostRanges(
        load_events(tmp_path, [operator(name, at, 100 - at) for at, name in enumerate(names)]).ranks[0].light
    )
    assert [(event.name, event.depth) for event in host.path(50 * US)] == [("outer", 0), ("middle", 1)]


@pytest.mark.parametrize(
    ("name", "lane"),
    [
        ("aten::linear", "compute"),
        ("aten::addmm", "compute"),  # inside another operator
        ("gloo:all_reduce", "gloo 1"),
        ("c10d::allreduce_", "script"),  # calls a collective, and computes nothing
        ("ProfilerStep", "script"),
    ],
)
def test_an_event_of_a_cpu_is_found_in_its_lane(tmp_path: Path, name: str, lane: str) -> None:
    events = [step(0, 0, 100), operator("aten::linear", 10, 40), operator("aten::addmm", 20, 30)]
    events += [operator("c10d::allreduce_", 50, 90), annotation("gloo:all_reduce", 60, 80, thread=2)]
    lanes = RankLanes(load_events(tmp_path, events), 0)
    hit = lanes.next_named(name, 0)
    assert hit is not None
    assert lanes.between(0, 100 * US)[hit.lane].label == lane


def test_what_is_too_short_to_be_seen_is_left_out(run: Run) -> None:
    host = HostRanges(run.ranks[0].light)
    step = RankLanes(run, 0).steps[1]
    (all_events, *_), (few, *_) = (host.between(step.start_ns, step.end_ns, least) for least in (1, 1_000_000))
    assert 0 < len(few.events) < len(all_events.events) / 4
    assert all(event.length_ns >= 1_000_000 for event in few.events)


def test_the_range_that_holds_a_straggler_up_is_named(real_traces: Path) -> None:
    """Four ranks, of which the third arrives a second late while its device is idle."""
    run = load([str(real_traces / "torchrec_straggler_4xv100")])
    run_time = RunTime(run)
    late = run_time.ranks[2]
    step = run_time.step(5)
    assert step is not None
    middle = (step.start_ns + step.end_ns) // 2
    path = HostRanges(late.view.trace).path(middle - late.offset_ns)
    assert path[-1].name == "# running sparse arch"
    assert path[-1].length_ns == pytest.approx(1_010e6, rel=0.001)
    cuts = np.array([middle - 100_000_000, middle + 100_000_000], dtype=np.int64)
    assert float(late.shares(cuts)["other_idle_ns"][0]) > 0.99
    for rank in (0, 1, 3):
        assert float(run_time.ranks[rank].shares(cuts)["exposed_waiting_ns"][0]) > 0.99

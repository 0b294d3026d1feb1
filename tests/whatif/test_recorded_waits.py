"""Recorded waits of streams: what a stream waits for by its records, whether or not the trace shows that it waited."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.simulator import pairs

from dptune.measure.across_ranks import across
from dptune.measure.views import view
from dptune.trace import load
from dptune.trace.run import Run
from dptune.whatif.gpu.building import build
from dptune.whatif.gpu.changes import changed
from dptune.whatif.gpu.program import Program

from ..measure.handmade import US, Event, call, event, kernel, launch, load_events, step  # noqa: TID252
from .test_gpu_simulated import FSDP, run_of


def program(run: Run) -> Program:
    views = [view(one.rank, one.light) for one in run.ranks]
    return build(views, across(run, views), None, len(views), None)


def waits(recorded: int, waiting: int, at: float, stream: int, awaited: int, **more: object) -> Event:
    """A record of a stream that waits for an event of another, which the calls of these numbers make it do."""
    args = {"wait_on_stream": awaited, "wait_on_cuda_event_record_corr_id": recorded, "stream": stream, **more}
    return event("cuda_sync", "Stream Wait Event", at, at + 1, stream, correlation=waiting, device=0, **args) | {
        "pid": 0
    }


def steps(*, through: bool = False, records: bool = True) -> list[Event]:
    """Three steps of 200 us: a runs on stream 7 from 10 to 20, b on stream 8 from 110 to 111; b waits for a.

    The host launches b at 100, long after a ended. `through`: stream 8 waits for stream 9, and that for a.
    """
    events = []
    for number in range(3):
        at, first = 200.0 * number, 10 * number
        events += [
            step(number, at, at + 200),
            launch(first, at + 1, at + 2),
            kernel("a", at + 10, at + 20, first),
            call("cudaEventRecord", at + 3, at + 4, first + 1),
            call("cudaStreamWaitEvent", at + 5, at + 6, first + 2),
            launch(first + 5, at + 100, at + 101),
            kernel("b", at + 110, at + 111, first + 5, stream=8),
        ]
        if through:
            events += [
                call("cudaEventRecord", at + 7, at + 8, first + 3),
                call("cudaStreamWaitEvent", at + 9, at + 10, first + 4),
            ]
        if not records:
            continue
        if through:
            events += [waits(first + 1, first + 2, at + 5, 9, 7), waits(first + 3, first + 4, at + 9, 8, 9)]
        else:
            events.append(waits(first + 1, first + 2, at + 5, 8, 7))
    return events


def begins_us(made: Program, at_us: float) -> float:
    """When an operation that was recorded to begin then does so, us after the first call."""
    return made.run()[made.recorded_ns.index(round((at_us - 1) * US))] / US + 1


@pytest.mark.parametrize(
    ("events", "begins"),
    [
        pytest.param(steps(records=False), 310, id="not recorded: b only follows its launch"),
        pytest.param(steps(), 610, id="recorded: b follows a, which runs from 310 to 610"),
        pytest.param(steps(through=True), 610, id="through a stream on which nothing is launched"),
        pytest.param([each for each in steps() if each["name"] != "cudaEventRecord"], 310, id="event of no known call"),
    ],
)
def test_an_operation_waits_for_another_stream_as_recorded(tmp_path: Path, events: list[Event], begins: float) -> None:
    """a takes 30 times as long, 300 us: that of the second step follows the first one's end at 310."""
    made = program(load_events(tmp_path, events))
    assert made.run() == [float(at) for at in made.recorded_ns]
    assert begins_us(made, 310) == 310
    assert begins_us(changed(made, {"compute.times": 30.0}), 310) == pytest.approx(begins)


@pytest.mark.long
def test_the_simulated_waits_are_those_that_the_records_name(tmp_path: Path) -> None:
    """A slow host hides what gathers wait for: with records the prediction is the simulated step, within 1 %."""
    run = run_of(3, {**FSDP}, 3.0, 40.0)
    told = {}
    for records in (True, False):
        chosen = replace(run[0], sync_records=records), run[1]
        folder = tmp_path / str(records)
        timelines = pairs.simulated(chosen, traced=True, steps=pairs.ALIKE)
        pairs.write_traces(chosen, timelines, folder, steps=pairs.ALIKE)
        told[records] = changed(program(load([folder])), {"host.times": 0.1}).step_ns()
    quick = replace(run[0], host=run[0].host.times(0.1)), run[1]
    true_ns = pairs.mean_step_ns(pairs.simulated(quick, traced=True, steps=pairs.ALIKE), pairs.ALIKE)
    assert told[True] == pytest.approx(true_ns, rel=0.01)

"""Steps of different length, and traces of ranks that start and end in different steps."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from tests.simulator import pairs

from dptune.measure import measure
from dptune.trace import load
from dptune.whatif.run_model import RunModel

from ..measure.handmade import US, Event, call, kernel, launch, load_events, step  # noqa: TID252
from .test_gpu_simulated import DDP, run_of


def steps(lengths_us: list[float]) -> list[Event]:
    """Each computes for 80 us and the host waits for that; then the host does something else."""
    events, at = [], 0.0
    for number, length_us in enumerate(lengths_us):
        events += [
            step(number, at, at + length_us),
            launch(number, at + 1, at + 2),
            kernel("a", at + 10, at + 90, number),
            call("cudaStreamSynchronize", at + 3, at + 92),
        ]
        at += length_us
    return events


@pytest.mark.parametrize("first", [260.0, 100.0])
def test_steps_count_as_often_as_they_were_recorded(tmp_path: Path, first: float) -> None:
    """Every third step takes 160 us longer, and none computes for longer: half the kernels save 40 us of each.

    The first step, which is not replayed, is one of the longer ones or not.
    """
    run = load_events(tmp_path, steps([first, 100, 100, 260, 100, 100, 260, 100]))
    model = RunModel.of(run, measure(run))
    half = model.predict({"compute.times": 0.5})
    assert model.step_ns - half.step_ns == pytest.approx(40 * US, rel=0.02)


def cut(path: Path, first_ms: float, last_ms: float) -> None:
    """Leave out all events that start in the first milliseconds of a trace or end in the last ones."""
    trace = json.loads(gzip.decompress(path.read_bytes()))
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    least = min(event["ts"] for event in events) + 1e3 * first_ms
    most = max(event["ts"] + event["dur"] for event in events) - 1e3 * last_ms
    kept = [event for event in events if event["ts"] >= least and event["ts"] + event["dur"] <= most]
    trace["traceEvents"] = [event for event in trace["traceEvents"] if event["ph"] != "X"] + kept
    path.write_bytes(gzip.compress(json.dumps(trace).encode()))


@pytest.mark.long
def test_steps_that_only_some_ranks_have_are_not_replayed(tmp_path: Path) -> None:
    """The trace of one rank starts later and ends earlier: predictions are those of the whole traces, within 2 %."""
    machine, settings = run_of(3, {**DDP, "layers": 2, "batch": 8}, 0.5, 5.0)
    timelines = pairs.simulated((machine, settings), traced=True)
    changes = {"ddp.bucket_cap_mb": 5.0}, {"link.gb_per_s": 40.0}, {"compute.times": 0.5}
    found = []
    for ends_ms in (0.0, 0.9 * pairs.mean_step_ns(timelines) / 1e6):
        folder = tmp_path / str(ends_ms)
        pairs.write_traces((machine, settings), timelines, folder)
        if ends_ms:
            cut(folder / "rank-00001.pt.trace.json.gz", ends_ms, ends_ms)
        run = load([folder])
        model = RunModel.of(run, measure(run))
        found.append([model.predict(change).step_ns / model.step_ns for change in changes])
    whole, part = found
    assert part == pytest.approx(whole, rel=0.02)
    assert whole[1] < 0.8

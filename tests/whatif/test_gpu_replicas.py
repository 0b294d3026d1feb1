"""DistributedDataParallel in place of fully_shard on GPUs: the buckets, and what their all-reduces take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.simulator import ddp as simulated_ddp
from tests.simulator import machine, pairs, settings
from tests.simulator.changes import Run
from tests.simulator.model import parameters

from dptune.measure import measure
from dptune.trace import load
from dptune.whatif.gpu.assumed import Side
from dptune.whatif.gpu.changes import changed
from dptune.whatif.gpu.graph import Kind
from dptune.whatif.gpu.links import SLOWED
from dptune.whatif.gpu.merging import sizes_of_units
from dptune.whatif.gpu.program import Program
from dptune.whatif.run_model import RunModel

from .. import reading  # noqa: TID252 - tests are no installed package

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "gpu" / "ranks-nccl-fsdp"
LAYERS, RANKS = 4, 2
UNITS: dict[str, object] = {
    "layers": LAYERS,
    "width": 1024,
    "heads": 16,
    "tokens": 256,
    "batch": 2,
    "losses_read": 0,
    "loader": None,
}
UNITS |= {"strategy": "fsdp", "precision": "fp32", "optimizer": "fused", "gradient_as_bucket_view": False}


def run_of(*, shapes: bool) -> Run:
    """A unit for each of four layers of 50 MB, over a link on which compute hides a part of what is sent."""
    found = machine.drawn(3, RANKS).without_noise()
    link = replace(found.link, gb_per_s=6.0)
    wanted = replace(settings.drawn(3, RANKS), **UNITS)  # type: ignore[arg-type]
    return replace(found, link=link, host=found.host.times(0.2), shapes=shapes), wanted


@cache
def model(*, shapes: bool) -> RunModel:
    run = run_of(shapes=shapes)
    with TemporaryDirectory() as folder:
        timelines = pairs.simulated(run, traced=True, steps=pairs.ALIKE)
        pairs.write_traces(run, timelines, Path(folder), steps=pairs.ALIKE)
        recorded = load([folder], cached=False)
        return RunModel.of(recorded, measure(recorded))


def program(*, shapes: bool) -> Program:
    return model(shapes=shapes).model  # type: ignore[return-value]


def sent(found: Program) -> Sequence[int]:
    return [found.messages[bucket.message].message_bytes for bucket in found.reductions[0].buckets]


def true_sizes() -> list[int]:
    """The bytes of the buckets that the simulated reducer makes."""
    wanted = run_of(shapes=True)[1]
    made = simulated_ddp.buckets(simulated_ddp.ready_order(parameters(wanted)), wanted.caps())
    return [4 * sum(parameter.elements for parameter in bucket) for bucket in made]


@pytest.mark.long
def test_buckets_hold_the_gradients_of_the_sizes_that_the_trace_has() -> None:
    known = changed(program(shapes=True), {"wrapper": "ddp"})
    assert sent(known) == pytest.approx(true_sizes(), rel=1e-3)
    assert sent(changed(program(shapes=False), {"wrapper": "ddp"})) != pytest.approx(true_sizes(), rel=1e-3)
    for side in (Side.LEAST, Side.MOST):
        assert sent(changed(program(shapes=True), {"wrapper": "ddp"}, side)) == sent(known)


@pytest.mark.long
def test_without_sizes_the_last_bucket_may_be_full_or_hold_the_last_gradient() -> None:
    unknown = program(shapes=False)
    assert not unknown.unit_gradients
    least, middle, most = (changed(unknown, {"wrapper": "ddp"}, side) for side in Side)
    assert sent(least)[-1] >= 25 * 2**20
    assert sent(least)[-1] > sent(middle)[-1] > sent(most)[-1]
    (unit,) = {sizes_of_units(unknown)[unit.unit] for unit in unknown.unit_reductions}
    assert sent(most)[-1] == round(unit / 12)
    assert sum(sent(least)) == sum(sent(middle)) == sum(sent(most))


def test_sizes_are_those_of_the_detailed_window_where_the_light_one_has_none() -> None:
    found = reading.modelled(SAMPLE).model
    assert isinstance(found, Program)
    assert found.unit_gradients.keys() == sizes_of_units(found).keys()
    for unit, size in sizes_of_units(found).items():
        assert 4 * sum(found.unit_gradients[unit]) == pytest.approx(size, rel=1e-3)


def test_single_collectives_differ_by_more_than_those_of_steps() -> None:
    """Where two ranks share an H200 a collective takes 0.3 to 3.7 times what the link says. DDP took 0.74 of a step."""
    measured = reading.measured(SAMPLE)
    ddp = reading.modelled(SAMPLE).predict({"wrapper": "ddp"})
    share = 1 / measured.step.time_ns
    assert ddp.low_ns * share < 0.74 < ddp.high_ns * share < 0.95
    assert ddp.step_ns * share == pytest.approx(0.74, rel=0.05)


def alone_ns(found: Program) -> float:
    """What all-reduces of the first pass take that overlap no compute, in total."""
    ends = [next(iter(bucket.ends.values())) for bucket in found.reductions[0].buckets]
    return sum(edge.lag_ns for end in ends for edge in found.edges[end] if edge.kind == Kind.COLLECTIVE) / RANKS


@pytest.mark.long
def test_what_compute_adds_to_transfers_is_assumed_where_none_is_alone() -> None:
    """Twice as long beside compute: an all-reduce after the pass takes half of what the collectives of units did."""
    before = program(shapes=True)
    seen = replace(before, transfer_shares=dict.fromkeys(range(len(before.messages)), 1.0), transfer_times=2.0)
    as_recorded = replace(before, transfer_shares=dict.fromkeys(range(len(before.messages)), 0.0), transfer_times=1.0)
    took = {found: alone_ns(changed(found, {"wrapper": "ddp"})) for found in (seen, as_recorded)}
    assert took[seen] == pytest.approx(took[as_recorded] / 2)
    unknown = replace(before, transfer_shares={}, transfer_times=1.0)
    least, middle, most = (changed(unknown, {"wrapper": "ddp"}, side) for side in Side)
    assert (least.transfer_times, middle.transfer_times, most.transfer_times) == SLOWED
    assert alone_ns(middle) > alone_ns(most)

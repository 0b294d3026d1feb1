"""Units of fully_shard on GPUs: merged, reduced once per step, or replaced by DDP: simulated and recorded runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.simulator import machine, pairs, settings
from tests.simulator.changes import Run

from dptune.knobs import Value
from dptune.measure import measure
from dptune.measured import Missing
from dptune.trace import load
from dptune.whatif.cpu.buckets import DEFAULT_CAP_BYTES
from dptune.whatif.gpu.assumed import Side
from dptune.whatif.gpu.changes import changed
from dptune.whatif.gpu.gathers import Gather
from dptune.whatif.gpu.graph import Kind, Message
from dptune.whatif.gpu.program import Program
from dptune.whatif.gpu.sharding import _depth
from dptune.whatif.gpu.splitting import parts_of_units
from dptune.whatif.run_model import RunModel

from .. import reading  # noqa: TID252 - tests are no installed package

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "gpu" / "ranks-nccl-fsdp"
LAYERS, RANKS = 4, 2
NO_LINK: dict[str, Value] = {"link.alpha_us": 0.0, "link.gb_per_s": 1e9, "host.times": 0.0}


def sharded_run(**chosen: object) -> Run:
    """Two ranks with a unit for each of four layers, without noise."""
    units = {"layers": LAYERS, "width": 512, "heads": 8, "tokens": 256, "batch": 4, "losses_read": 0, "loader": None}
    units |= {"strategy": "fsdp", "precision": "fp32", "optimizer": "fused", "micro_batches": 1, "prefetch": 0}
    wanted = replace(settings.drawn(3, RANKS), **{**units, "unit_layers": 1, **chosen})  # type: ignore[arg-type]
    return machine.drawn(3, RANKS).without_noise(), wanted


@cache
def simulated(micro_batches: int = 1, *, prefetch: int = 0, unit_layers: int = 1) -> Program:
    """Two ranks with a unit for each of four layers, or for several, without noise."""
    run = sharded_run(micro_batches=micro_batches, prefetch=prefetch, unit_layers=unit_layers)
    with TemporaryDirectory() as folder:
        timelines = pairs.simulated(run, traced=True, steps=pairs.ALIKE)
        pairs.write_traces(run, timelines, Path(folder), steps=pairs.ALIKE)
        recorded = load([folder], cached=False)
        return RunModel.of(recorded, measure(recorded)).model  # type: ignore[return-value]


def sent(program: Program, ends: Sequence[int]) -> list[Message]:
    edges = (edge for end in ends for edge in program.edges[end] if edge.kind == Kind.COLLECTIVE)
    return [program.messages[number] for number in dict.fromkeys(edge.message for edge in edges)]


def gathered(program: Program) -> list[Message]:
    return sent(program, [gather.operations[-1][1] for gather in program.gathers])


def reduced(program: Program) -> list[Message]:
    return sent(program, [unit.end for unit in program.unit_reductions])


def total(messages: Sequence[Message]) -> int:
    return sum(message.message_bytes for message in messages)


@pytest.mark.long
def test_units_as_they_are_change_nothing() -> None:
    program = simulated()
    assert changed(program, {"fsdp.units": LAYERS}) is program
    assert changed(program, {"wrapper": "fsdp"}) is program
    assert changed(program, {"fsdp.no_sync": True}) is program  # one pass reduces in each step


@pytest.mark.parametrize("units", [1, 2, 3])
def test_merged_units_send_the_same_bytes_in_fewer_collectives(units: int) -> None:
    program = simulated()
    merged = changed(program, {"fsdp.units": units})
    for found in (gathered, reduced):
        assert total(found(merged)) == total(found(program))
        assert len(found(merged)) * LAYERS == len(found(program)) * units
    assert {unit.rank: len(unit.ready) for unit in merged.unit_reductions if units == 1} == (
        dict.fromkeys(range(RANKS), 12 * LAYERS) if units == 1 else {}
    )
    assert merged.step_ns() >= merged.busy_ns()


@pytest.mark.long
@pytest.mark.parametrize("units", [3, 4, 7])
def test_parts_of_units_send_the_same_bytes_in_more_collectives(units: int) -> None:
    program = simulated(unit_layers=2)
    parts = changed(program, {"fsdp.units": units})
    for found in (gathered, reduced):
        assert total(found(parts)) == pytest.approx(total(found(program)), rel=1e-5)
        assert len(found(parts)) * 2 == len(found(program)) * units
    ready = Counter(place for unit in parts.unit_reductions for place in unit.ready)
    assert sorted(ready.values()) == sorted(
        Counter(place for unit in program.unit_reductions for place in unit.ready).values()
    )
    assert parts.step_ns() >= parts.busy_ns() >= program.busy_ns()


@pytest.mark.long
@pytest.mark.parametrize("micro_batches", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_parts_take_what_units_of_their_size_take(micro_batches: int) -> None:
    """Layers are alike: split in two, two units are four, and those merged again are two."""
    whole, fine = (simulated(micro_batches, unit_layers=layers) for layers in (2, 1))
    parts = changed(whole, {"fsdp.units": LAYERS})
    assert parts.step_ns() == pytest.approx(fine.step_ns(), rel=0.03)
    assert changed(parts, {"fsdp.units": 2}).step_ns() == pytest.approx(whole.step_ns(), rel=0.03)
    least, most = (changed(whole, {"fsdp.units": LAYERS}, side).step_ns() for side in (Side.LEAST, Side.MOST))
    assert most <= parts.step_ns() <= least


@pytest.mark.long
@pytest.mark.parametrize("units", [8, *(pytest.param(units, marks=pytest.mark.thorough) for units in (5, 16))])
def test_parts_of_units_as_torch_records_them(units: int) -> None:
    """On a card some kernels began just as a gather was over, which is issued later for parts: they do not wait for it.

    Its two ranks share a GPU, which is left out of account here.
    """
    model = reading.modelled(SAMPLE).model
    alone = replace(model, shared=False)  # type: ignore[arg-type]
    parts = changed(alone, {"fsdp.units": units})
    assert len(gathered(parts)) * LAYERS == len(gathered(alone)) * units
    assert parts.busy_ns() <= parts.step_ns() <= 2 * alone.step_ns()
    also: dict[str, Value] = {"fsdp.reshard_after_forward": False, "accumulation.micro_batches": 2}
    assert changed(alone, {"fsdp.units": units, **also}).step_ns() > parts.busy_ns()


@pytest.mark.long
def test_gathers_that_torch_prefetches_are_not_issued_anew() -> None:
    """In backward passes it does so by default. Issued anew at the same place, they begin as before."""
    made = reading.modelled(SAMPLE).model
    assert isinstance(made, Program)
    of_passes = [gather for gather in made.gathers if gather.backward]
    assert sum(gather.prefetched for gather in of_passes) * LAYERS == len(of_passes) * (LAYERS - 1)
    assert changed(made, {"fsdp.backward_prefetch": 1}).step_ns() == made.step_ns()
    both, forward = (changed(made, {f"fsdp.{name}": 1}).step_ns() for name in ("prefetch", "forward_prefetch"))
    assert both == forward < 0.95 * made.step_ns()
    for same in ({"fsdp.param_dtype": "fp32"}, {"fsdp.reduce_dtype": "fp32"}):
        assert changed(made, same).step_ns() == made.step_ns()  # messages are of 32-bit floats already
    with pytest.raises(Missing, match="ranks share a GPU"):  # 0.87 of the step was measured with 2, 1.05 predicted
        changed(made, {"fsdp.backward_prefetch": 2})
    unknown = replace(made, shared=False, gathers=[replace(gather, prefetched=False) for gather in made.gathers])
    anew = changed(unknown, {"fsdp.backward_prefetch": 1}).step_ns()
    assert anew != made.step_ns()  # they were issued anew
    assert anew == pytest.approx(made.step_ns(), rel=1e-3)


def test_a_gather_is_as_many_units_ahead_as_units_before_it_are_not_copied_out() -> None:
    """Units are copied out at 10, 20 and 30. One that another unit prefetches is issued right after that one's copy."""
    before = [Gather(0, 0, True, "", (), used - 5, used, used + 1) for used in (10, 20, 30)]
    for call, prefetched, ahead in ((31, False, 0), (31, True, 1), (21, True, 2), (21, False, 1), (9, False, 3)):
        gather = Gather(0, 0, True, "", (), call, 40, 41, prefetched=prefetched)
        assert _depth([*before, gather], 3) == ahead


@pytest.mark.thorough
def test_parts_in_passes_that_reduce_nothing() -> None:
    """Of two micro-batches the last reduces: the units of the first begin as many kernels into their wholes."""
    whole, fine = (changed(simulated(2, unit_layers=layers), {"fsdp.no_sync": True}) for layers in (2, 1))
    parts = changed(whole, {"fsdp.units": LAYERS})
    assert len(gathered(parts)) == len(gathered(fine))
    assert len(parts.unit_reductions) == len(fine.unit_reductions)
    assert parts.step_ns() == pytest.approx(fine.step_ns(), rel=0.03)


@pytest.mark.long
def test_parts_are_gathered_again_as_their_unit_is() -> None:
    whole = changed(simulated(unit_layers=2), {"fsdp.units": LAYERS, "fsdp.reshard_after_forward": False})
    fine = changed(simulated(), {"fsdp.reshard_after_forward": False})
    assert whole.step_ns() == pytest.approx(fine.step_ns(), rel=0.03)


def test_the_root_is_split_only_where_it_is_the_only_unit() -> None:
    assert parts_of_units({"": 900, "a": 100, "b": 100}, 5, "") == {"": 1, "a": 2, "b": 2}
    assert parts_of_units({"": 900}, 3, "") == {"": 3}
    assert parts_of_units({"a": 100, "b": 300}, 4, "") == {"a": 1, "b": 3}


def test_two_steps_of_merging_send_what_one_does() -> None:
    program = changed(simulated(), {"host.times": 0.0})
    at_once, in_turn = changed(program, {"fsdp.units": 1}), program
    for units in (2, 1):
        in_turn = changed(in_turn, {"fsdp.units": units})
    assert Counter(gathered(in_turn)) == Counter(gathered(at_once))
    assert in_turn.step_ns() == pytest.approx(at_once.step_ns(), rel=0.02)


def copied_back_ns(program: Program) -> float:
    """What copying gradients out of buckets takes in a step: as long as copying them in, and 3 us for each."""
    units = [unit for unit in program.unit_reductions if unit.rank == 0]
    ends = [end for unit in units for _, end in unit.operations[: unit.collective]]
    copied = sum(edge.lag_ns for end in ends for edge in program.edges[end] if edge.kind == Kind.COMPUTE)
    return (copied + 3e3 * sum(len(unit.ready) for unit in units)) / len({unit.step for unit in units})


@pytest.mark.long
@pytest.mark.parametrize("change", [{"fsdp.units": 1}, {"fsdp.units": 2}, {"fsdp.no_sync": True}, {"wrapper": "ddp"}])
def test_a_link_without_time_leaves_copies_and_updates(change: dict[str, Value]) -> None:
    """Where the host takes no time either, no more than these differ from the compute."""
    program = simulated(2)
    at_once, after = changed(program, NO_LINK), changed(program, {**NO_LINK, **change})
    busy_ns = after.busy_ns() - at_once.busy_ns() + (copied_back_ns(program) if "wrapper" in change else 0.0)
    assert after.step_ns() - at_once.step_ns() == pytest.approx(busy_ns, abs=0.03 * at_once.step_ns())


@pytest.mark.long
def test_only_the_last_pass_of_a_step_reduces() -> None:
    program = simulated(2)
    once = changed(program, {"fsdp.no_sync": True})
    assert 2 * len(once.unit_reductions) == len(program.unit_reductions)
    assert {program.micro_batches[unit.call] for unit in once.unit_reductions} == {1}
    assert len(gathered(once)) == len(gathered(program))
    gone = {unit.end for unit in program.unit_reductions} - {unit.end for unit in once.unit_reductions}
    assert all(edge.kind == Kind.ORDER and not edge.lag_ns for end in gone for edge in once.edges[end])
    least, most = (changed(program, {"fsdp.no_sync": True}, side).step_ns() for side in (Side.LEAST, Side.MOST))
    assert most <= once.step_ns() <= least


@pytest.mark.long
def test_more_micro_batches_that_reduce_once() -> None:
    """From one micro-batch to two, and from two of which the last reduces."""
    one, two = simulated(1), simulated(2)
    grown = changed(one, {"accumulation.micro_batches": 2, "fsdp.no_sync": True})
    assert grown.step_ns() < changed(one, {"accumulation.micro_batches": 2}).step_ns()
    once = changed(two, {"fsdp.no_sync": True})
    assert grown.step_ns() == pytest.approx(once.step_ns(), rel=0.05)
    four = changed(two, {"accumulation.micro_batches": 4, "fsdp.no_sync": True})
    assert four.step_ns() - once.step_ns() == pytest.approx(2 * (once.step_ns() - one.step_ns()), rel=0.1)


@pytest.mark.long
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_ddp_reduces_the_same_gradients_in_buckets(micro_batches: int) -> None:
    program = simulated(micro_batches)
    ddp = changed(program, {"wrapper": "ddp"})
    assert not ddp.gathers
    passes = {(unit.step, program.micro_batches[unit.call]) for unit in program.unit_reductions}
    assert len(ddp.reductions) == len(passes)
    for reduction in ddp.reductions:
        buckets = [ddp.messages[bucket.message] for bucket in reduction.buckets]
        assert total(buckets) == pytest.approx(total(reduced(program)) / len(passes), rel=1e-3)
        assert buckets[0].message_bytes < DEFAULT_CAP_BYTES
        assert {bucket.last for bucket in reduction.buckets} <= set(range(12 * LAYERS))
        assert reduction.in_order
    assert ddp.busy_ns() <= ddp.step_ns() <= not_overlapped_ns(ddp)
    smaller = changed(program, {"wrapper": "ddp", "ddp.bucket_cap_mb": 1.0})
    assert len(smaller.reductions[0].buckets) > len(ddp.reductions[0].buckets)


def not_overlapped_ns(program: Program) -> float:
    """A step of compute, then all its all-reduces, then what the host takes."""
    steps = len({reduction.step for reduction in program.reductions})
    ends = [next(iter(bucket.ends.values())) for each in program.reductions for bucket in each.buckets]
    lags = sum(next(edge.lag_ns for edge in program.edges[end] if edge.kind == Kind.COLLECTIVE) for end in ends)
    host = [edge.lag_ns for at, each in enumerate(program.edges) if program.ranks[at] == 0 for edge in each]
    kinds = [edge.kind for at, each in enumerate(program.edges) if program.ranks[at] == 0 for edge in each]
    worked = sum(lag for lag, kind in zip(host, kinds, strict=True) if kind in (Kind.HOST, Kind.UPDATING))
    return program.busy_ns() + (lags + worked) / steps


@pytest.mark.long
def test_without_reductions_in_all_but_one_pass_ddp_keeps_one_reduction() -> None:
    ddp = changed(simulated(2), {"wrapper": "ddp", "ddp.no_sync": True})
    assert len(ddp.reductions) == len({reduction.step for reduction in ddp.reductions})


@pytest.mark.long
def test_gathers_issued_ahead_stay_ahead() -> None:
    """Explicit prefetching of one unit hides gathers of merged units as well."""
    change: dict[str, Value] = {"fsdp.units": 2, "host.times": 4.0}
    ahead, used = (changed(simulated(prefetch=depth), change).step_ns() for depth in (1, 0))
    assert ahead <= used * 1.01


def test_what_cannot_be_known() -> None:
    program = simulated()
    in_16_bits = [replace(message, dtype="c10::BFloat16") for message in program.messages]
    of_hosts = [replace(message, ranks=RANKS - 1) for message in program.messages]
    for other, change, why in (
        (program, {"fsdp.units": 12 * LAYERS + 1}, "48 tensors"),
        (program, {"fsdp.units": 10**12}, "48 tensors"),
        (program, {"fsdp.units": 0}, "at least one unit"),
        (replace(program, shared=True), {"fsdp.units": 2 * LAYERS}, "take turns"),
        (replace(program, gathers=()), {"fsdp.units": 1}, "no fully_shard"),
        (replace(program, unit_reductions=()), {"fsdp.units": 1}, "reduce-scatters"),
        (replace(program, unit_reductions=()), {"wrapper": "ddp"}, "reduce-scatters"),
        (replace(program, unit_reductions=()), {"fsdp.no_sync": True}, "reduce-scatters"),
        (replace(program, micro_batches=()), {"fsdp.no_sync": True}, "backward passes"),
        (program, {"fsdp.no_sync": False}, "every backward pass"),
        (program, {"wrapper": "ddp", "fsdp.units": 1}, "has no units"),
        (replace(program, messages=in_16_bits), {"wrapper": "ddp"}, "16 bits"),
        (replace(program, messages=of_hosts), {"wrapper": "ddp"}, "groups of ranks"),
        (replace(program, gathers=(), reductions=()), {"wrapper": "ddp"}, "no fully_shard"),
        (replace(program, gathers=()), {"wrapper": "fsdp"}, "without fully_shard"),
    ):
        with pytest.raises(Missing, match=why):
            changed(other, change)  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "measured"),
    [  # of DDP test_gpu_replicas.py asks more
        ({"fsdp.units": 1}, 1.03),
        pytest.param({"fsdp.units": 2}, 0.94, marks=pytest.mark.thorough),
        pytest.param({"wrapper": "ddp"}, 0.74, marks=pytest.mark.thorough),
    ],
)
def test_intervals_of_a_recording_hold_what_a_card_measured(change: dict[str, Value], measured: float) -> None:
    """Steps of tests/benchmarks/GPU.md, as multiples of the step without the change."""
    model = reading.modelled(SAMPLE)
    found = model.predict(change)
    assert found.low_ns <= measured * model.step_ns <= found.high_ns


@pytest.mark.long
@pytest.mark.parametrize("change", [{"fsdp.units": 2}, {"wrapper": "ddp"}])
def test_that_nothing_is_sharded_comes_before_that_the_link_is_unknown(change: dict[str, Value]) -> None:
    program = replace(simulated(), gathers=(), unit_reductions=(), link=None)
    with pytest.raises(Missing, match="no fully_shard"):
        changed(program, change)
    with pytest.raises(Missing, match="unknown: measure them"):
        changed(replace(simulated(), link=None), change)

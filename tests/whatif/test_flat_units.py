"""The step model of a recorded run of FullyShardedDataParallel (FSDP1) on two CPU ranks, whose trace names no units.

The recording is older than the facts of its units: two, each of ten layers of 256 by 256 and their norms.
"""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dptune.commands.shared.reading import measured_of
from dptune.measure.views import view
from dptune.measured import Missing
from dptune.present.tui.dials import dials
from dptune.runfile.communication import FsdpFacts
from dptune.testing import facts_of
from dptune.whatif.cpu.replay import step_ns
from dptune.whatif.cpu.unit_building import read
from dptune.whatif.cpu.unit_timeline import unit_timeline
from dptune.whatif.flat_settings import arguments
from dptune.whatif.gpu.parts import HostParts, Part
from dptune.whatif.memory.changes import changed as memory_changed
from dptune.whatif.memory.model import MemoryModel, Moment
from dptune.whatif.run_model import RunModel

TESTS = Path(__file__).parents[1]
RECORDED = TESTS / "rules" / "recorded" / "runs" / "flat-parameters"
UNIT = 5 * 4 * (256 * 256 + 256)
ORDER = ["0", "1"]
SIZES = {kind: dict.fromkeys(ORDER, float(UNIT)) for kind in ("gather", "reduce")}


@pytest.fixture(scope="module")
def recorded():
    links = TESTS / "whatif" / "units_over_1_gbit" / "links.json"
    return measured_of([str(RECORDED)], 1, cached=False, links=links)


def with_units(run, **changed):
    """The run with what a recording of today has of its units."""
    known = {"names": ORDER, "order": [0, 1], "gathered_bytes": [UNIT] * 2, **changed}
    facts = {
        rank: replace(rank_facts, fsdp=[replace(rank_facts.fsdp[0], **known), *rank_facts.fsdp[1:]])
        for rank, rank_facts in run.facts.items()
    }
    return replace(run, facts=facts)


@pytest.mark.long
def test_units_are_gathered_in_order_again_in_reverse_and_reduced_in_reverse(recorded):
    run, measured = recorded
    found = read(with_units(run), measured)
    assert found.sharding.names == ("0", "1")
    for rank_steps in found.model().steps.values():
        for step in rank_steps:
            (only,) = step.passes
            assert [(call.kind, call.direction, call.unit, call.message_bytes) for call in only.calls] == [
                ("gather", "forward", 0, UNIT),
                ("gather", "forward", 1, UNIT),
                ("gather", "backward", 1, UNIT),
                ("gather", "backward", 0, UNIT),
                ("reduce", "backward", 1, UNIT),
                ("reduce", "backward", 0, UNIT),
            ]


def test_compute_and_collectives_are_the_traced_step(recorded):
    """By a plain reading of the trace: its steps, and gloo's events in them, six to a step, one at a time."""
    run, _ = recorded
    events = json.loads(gzip.decompress((RECORDED / "rank-00000.trace.json.gz").read_bytes()))["traceEvents"]
    steps = sorted((event["ts"], event["dur"]) for event in events if event.get("name", "").startswith("ProfilerStep"))
    sent = [(event["ts"], event["dur"]) for event in events if event.get("name", "").startswith("gloo:")]
    (rank,) = (each for each in run.ranks if each.rank == 0)
    found = unit_timeline(view(0, rank.light, run.facts[0].window("light")), SIZES, ORDER)
    assert len(found.steps) == len(steps) == 4
    for step, (start, dur) in zip(found.steps, steps, strict=True):
        inside = [took for at, took in sent if start <= at < start + dur]
        (only,) = step.passes
        computed = only.loader_ns + only.forward_ns + only.backward_ns + step.after_ns
        assert len(inside) == 6
        assert computed + 1e3 * sum(inside) == pytest.approx(1e3 * dur, abs=2e3)  # us of three decimals


def test_the_unchanged_replay_is_near_the_step(recorded):
    run, measured = recorded
    ground = RunModel.of(with_units(run), measured)
    assert ground.error_share < 0.05
    kept = ground.predict({"fsdp.reshard_after_forward": False})
    assert kept.low_ns < ground.step_ns
    assert step_ns(ground.model.without_transfers()) < step_ns(ground.model)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"names": [], "order": []}, "sizes of units are unknown"),
        ({"order": []}, "order of units"),
        ({"strategy": "HYBRID_SHARD"}, "FULL_SHARD and SHARD_GRAD_OP"),
        ({"offload": "CPUOffload"}, "offloaded parameters"),
        ({"names": ["0"], "order": [0], "gathered_bytes": [UNIT]}, "more collectives than units"),
    ],
)
def test_what_the_model_does_not_cover_is_named(recorded, changed, why):
    run, measured = recorded
    with pytest.raises(Missing, match=why):
        read(with_units(run, **changed), measured)


def test_both_versions_in_one_model(recorded):
    run, measured = recorded
    own = with_units(run)
    facts = {rank: replace(each, fsdp=[*each.fsdp, FsdpFacts(2, mesh=[2])]) for rank, each in own.facts.items()}
    with pytest.raises(Missing, match="either"):
        read(replace(own, facts=facts), measured)


def test_the_memory_of_units_that_are_not_modelled():
    model = MemoryModel(
        parameters=50,
        state=100,
        buffers=0,
        buckets=0,
        others=0,
        moments=(Moment("backward", activations=40),),
        whole=100,
        trained=100,
        largest_parameter=10,
        batch=8,
        ranks=2,
        optimizer="AdamW",
        sharding=None,
        split=None,
        flat=True,
    )
    assert memory_changed(model, {"loader.batch_size": 16}).peak == 150 + 80
    for settings in ({"wrapper": "ddp"}, {"optimizer.name": "sgd"}, {"world_size": 4}, {"fsdp.units": 2}):
        with pytest.raises(Missing, match=r"FSDP1\), peak memory is predicted for other batch sizes, not for [\w.]+$"):
            memory_changed(model, settings)


def test_gathers_of_backward_passes_are_known_by_their_hooks(recorded):
    """What the replay of GPU steps takes away with SHARD_GRAD_OP: the last two of the four gathers of each step."""
    run, _ = recorded
    (rank,) = (each for each in run.ranks if each.rank == 0)
    viewed = view(0, rank.light, run.facts[0].window("light"))
    columns = viewed.columns
    gathers = columns.rows({"cpu_op"}, lambda name: name == "c10d::allgather_")
    gathers = gathers[np.argsort(columns.ts_ns[gathers])]
    found = HostParts.of(viewed).parts(columns.thread[gathers], columns.ts_ns[gathers])
    assert found.tolist() == 4 * [0, 0, Part.REGATHER, Part.REGATHER]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"wrapper": "ddp"}, "in place of FullyShardedDataParallel (FSDP1) is not predicted"),
        (
            {"ddp.bucket_cap_mb": 1.0},
            "ddp.bucket_cap_mb has no effect: the script uses FullyShardedDataParallel (FSDP1)",
        ),
        ({"fsdp.forward_prefetch": 2}, "gathers at most one unit ahead"),
        ({"fsdp.reshard_after_forward": 2}, "cannot reshard to groups of ranks"),
    ],
)
def test_what_fsdp1_does_not_have_is_not_predicted(recorded, changes, why):
    run, measured = recorded
    ground = RunModel.of(with_units(run), measured)
    prediction = ground.predict(changes)
    assert why in prediction.missing["step_ns"]
    assert why in ground.lack(changes)
    assert prediction.known("low_ns") is None


def test_changes_are_named_as_fsdp1_calls_them(recorded):
    run, measured = recorded
    ground = RunModel.of(with_units(run), measured)
    changes = {"fsdp.reshard_after_forward": False, "fsdp.no_sync": True}
    words = "in FullyShardedDataParallel (FSDP1) this is sharding_strategy=ShardingStrategy.SHARD_GRAD_OP"
    assert f"{words} and model.no_sync()" in ground.predict(changes).assumptions
    assert not any("FSDP1" in words for words in ground.predict({"loader.num_workers": 2}).assumptions)
    assert arguments(changes, [facts_of(fsdp=[FsdpFacts(2, mesh=[2])])]) == []
    assert arguments(changes, []) == []


def test_the_full_screen_report_offers_no_ddp_in_place_of_fsdp1(recorded):
    run, measured = recorded
    offered = {dial.knob for dial in dials(with_units(run), measured)}
    assert "fsdp.units" in offered
    assert "wrapper" not in offered

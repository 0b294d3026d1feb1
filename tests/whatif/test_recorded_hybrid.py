"""A recorded run of fully_shard, made into one of HSDP: 20 ms after each reduce-scatter its shard is all-reduced.

Ranks 0 and 1 of units_over_1_gbit/ stand for both groups of a mesh of two by two. What follows a reduction comes 20 ms
later, in traced steps and in others.
"""

import gzip
import json
from bisect import bisect_left, bisect_right
from dataclasses import replace
from pathlib import Path

import pytest

from dptune.commands.shared.reading import measured_of
from dptune.measure.views import view
from dptune.measured import Missing
from dptune.testing import ask
from dptune.trace import load
from dptune.whatif.cpu.unit_building import read
from dptune.whatif.cpu.unit_timeline import unit_timeline
from dptune.whatif.predicting import compare, search
from dptune.whatif.run_model import RunModel
from dptune_rules.topology import sharded_across_hosts

RECORDED = Path(__file__).parent / "units_over_1_gbit"
LONGER_US = 20_000.0
UNITS = 3
SIZES = dict(zip("024", (1644800.0, 4482800.0, 717824.0), strict=True))


def with_all_reduces(trace):
    """The trace with an all-reduce after each reduction, and all that follows it later."""
    events = trace["traceEvents"]
    timed = [event for event in events if event.get("ph") == "X"]
    reductions = [event for event in timed if event["name"] == "gloo:all_reduce"]
    operators = [event for event in timed if event["name"] == "c10d::_reduce_scatter_base_"]
    ends = sorted(event["ts"] + event["dur"] for event in reductions)
    added = []
    for event, operator in zip(reductions, operators, strict=True):
        at = event["ts"] + event["dur"] + LONGER_US * bisect_left(ends, event["ts"] + event["dur"])
        added.append({**operator, "name": "c10d::allreduce_", "ts": at + 1, "dur": LONGER_US - 2})
        added.append({**event, "ts": at + 2, "dur": LONGER_US - 2})
    for event in events:
        if "ts" not in event:
            continue
        over = event["ts"] + event.get("dur", 0)
        event["ts"] += LONGER_US * bisect_right(ends, event["ts"])
        if "dur" in event:
            event["dur"] = over + LONGER_US * bisect_left(ends, over) - event["ts"]
    return {**trace, "traceEvents": [*events, *added]}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hybrid")
    for rank in range(4):
        name = f"rank-{rank % 2:05d}"
        trace = json.loads(gzip.decompress((RECORDED / f"{name}.trace.json.gz").read_bytes()))
        trace["distributedInfo"] = {"backend": "gloo", "rank": rank, "world_size": 4}
        written = gzip.compress(json.dumps(with_all_reduces(trace)).encode(), compresslevel=1)
        (folder / f"rank-{rank:05d}.trace.json.gz").write_bytes(written)
        facts = json.loads((RECORDED / f"{name}.facts.json").read_text())
        facts.update(rank=rank, world_size=4)
        for window in facts["windows"]:
            window["durations_ns"] = [took + round(UNITS * LONGER_US * 1e3) for took in window["durations_ns"]]
        for sharded in facts["fsdp"]:
            if sharded["mesh"]:
                sharded.update(mesh=[2, 2], strategy="HYBRID_SHARD")
        (folder / f"rank-{rank:05d}.facts.json").write_text(json.dumps(facts))
    record = json.loads((RECORDED / "run.json").read_text())
    record["world_size"] = 4
    (folder / "run.json").write_text(json.dumps(record))
    return measured_of([str(folder)], 1, cached=False, links=None)


@pytest.mark.long
def test_an_all_reduce_is_a_part_of_its_reduction(recorded):
    plain = load([RECORDED], cached=False)
    run, _ = recorded
    sizes = {"gather": SIZES, "reduce": SIZES}

    def flights(some, rank):
        (ranked,) = (each for each in some.ranks if each.rank == rank)
        return unit_timeline(view(rank, ranked.light, some.facts[rank].window("light")), sizes).flights

    for now, then in zip(flights(plain, 0), flights(run, 0), strict=True):
        assert (now.kind, now.unit) == (then.kind, then.unit)
        assert now.within_ns == pytest.approx(then.within_ns, abs=2)
        assert then.between_ns == pytest.approx(1e3 * LONGER_US if now.kind == "reduce" else 0, abs=2)
        assert then.around_ns <= now.around_ns + 2


@pytest.mark.long
def test_the_links_of_groups_are_those_of_the_run(recorded):
    """Of an all-reduce between groups, 20 ms of each size, latency is a half in the middle, and nothing to nearly all.

    The link of the group is that of the recorded run: 1.1 ms and 8.57 ns per byte for an all-reduce.
    """
    hybrid = read(*recorded).sharding.hybrid
    assert hybrid.shards == 2
    assert hybrid.between.alpha_ns == pytest.approx(0.5 * 1e3 * LONGER_US, rel=1e-6)
    assert [between.alpha_ns for _, between in hybrid.others] == pytest.approx([0.0, 0.95 * 1e3 * LONGER_US], rel=1e-6)
    assert hybrid.between.alone_ns(1644800.0) == pytest.approx(1e3 * LONGER_US, rel=1e-6)  # the size in the middle
    for size in SIZES.values():
        assert hybrid.within.alone_ns(size) == pytest.approx(1.1e6 + 8.57 * size, rel=0.35)


def test_the_unchanged_replay_is_near_the_step(recorded):
    ground = RunModel.of(*recorded)
    assert ground.step_ns == pytest.approx(282e6 + UNITS * 1e3 * LONGER_US, rel=0.02)
    assert ground.error_share < 0.05
    assert "within and between groups" in ground.result([]).link
    assert ground.at_best_ns() < ground.step_ns - UNITS * 1e3 * LONGER_US
    kept = ground.predict({"fsdp.reshard_after_forward": False})
    assert kept.low_ns < kept.step_ns < ground.step_ns < kept.high_ns + 0.2 * ground.step_ns
    halved = ground.predict({"fsdp.reduce_dtype": "bf16"})
    assert halved.low_ns < halved.step_ns < halved.high_ns
    assert halved.high_ns - halved.low_ns > 20e6  # from nothing of the all-reduces between groups to a half of each
    none = ground.predict({"world_size": 8})
    assert "two-dimensional mesh" in none.missing["step_ns"]


@pytest.mark.long
def test_what_is_tried_and_compared(recorded):
    changes = [next(iter(prediction.changes)) for prediction in search(*recorded).predictions]
    assert "fsdp.within_hosts" not in changes
    assert "fsdp.reshard_after_forward" in changes
    found = {strategy.name: strategy for strategy in compare(*recorded).strategies}
    assert list(found) == ["HSDP, unchanged", "HSDP, kept gathered", "DDP"]
    assert found["HSDP, unchanged"].state_bytes == 2 * sum(SIZES.values())  # four times the parameters, on two ranks
    assert "two-dimensional mesh" in found["DDP"].missing["high_ns"]


def test_hsdp_is_proposed_for_one_mesh_across_hosts_alone(recorded):
    run, measured = recorded

    def found(mesh, hosts):
        facts = [
            replace(known, host=host, fsdp=[replace(each, mesh=each.mesh and mesh) for each in known.fsdp])
            for known, host in zip(run.facts.values(), hosts, strict=True)
        ]
        return ask(sharded_across_hosts, measured, facts)

    (advice,) = found([4], "aabb")
    assert advice.title.startswith("All-gathers across 2 hosts take ")
    assert advice.changes[0].snippet.startswith('mesh = init_device_mesh("cpu", (2, 2)')
    assert found([2, 2], "aabb") == found([4], "aaaa") == found([4], "abcd") == []


@pytest.mark.long
def test_a_reduction_that_is_not_all_reduced(recorded):
    run, measured = recorded
    plain, _ = measured_of([str(RECORDED)], 1, cached=False, links=None)
    (silent,) = (each for each in plain.ranks if each.rank == 0)
    ranks = [replace(each, light=silent.light) for each in run.ranks]
    with pytest.raises(Missing, match="set_requires_all_reduce"):
        read(replace(run, ranks=ranks), measured)

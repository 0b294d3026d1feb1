"""HSDP on CPUs, by hand: two groups of two ranks, whose units of 100 and 60 bytes are those of test_units.py."""

from dataclasses import replace

import pytest

from dptune.measured import Missing
from dptune.whatif.cpu.buckets import Caps
from dptune.whatif.cpu.changes import changed
from dptune.whatif.cpu.hybrid import others_of, seen, variants_of
from dptune.whatif.cpu.model import Pass, RankStep, StepModel
from dptune.whatif.cpu.replay import step_ns
from dptune.whatif.cpu.shared_link import Link
from dptune.whatif.cpu.units import Hybrid, Sharding, UnitCall, ended

from .test_units import COMPUTE_NS, STEP, model

REDUCTION = UnitCall(0.0, "reduce", "backward", 0, 100.0)
GATHER = replace(REDUCTION, kind="gather")
HYBRID = Hybrid(2, Link(20.0, 2.0), Link(60.0, 0.5))


def on_hosts(hosts, ranks=4, **more):
    """Four ranks; a hop takes 10 and moves a byte in 1: of an all-reduce 60, and 1.5 a byte."""
    return model(ranks=ranks, hosts=hosts, link=Link(60.0, 1 / 1.5), **more)


def test_a_gather_waits_for_its_group_alone():
    """Within a group an all-reduce takes 20 + x / 2, a gather half of that: 10 + 25."""
    issued = {0: 0.0, 1: 0.0, 2: 500.0, 3: 500.0}
    assert ended(GATHER, issued, Link(1.0, 1.0), 1.0, HYBRID) == {0: 35.0, 1: 35.0, 2: 535.0, 3: 535.0}


def test_a_reduction_is_all_reduced_with_the_same_shard_of_the_other_group():
    """In the groups 20 + 50, between them 60 + 200: rank 0 waits for rank 2, rank 1 for rank 3."""
    issued = {0: 0.0, 1: 0.0, 2: 500.0, 3: 500.0}
    assert ended(REDUCTION, issued, Link(1.0, 1.0), 1.0, HYBRID) == dict.fromkeys(issued, 570.0 + 260.0)
    assert ended(REDUCTION, issued, Link(1.0, 1.0), 2.0, HYBRID) == dict.fromkeys(issued, 640.0 + 520.0)


def test_shards_within_two_hosts_that_were_recorded():
    """Between hosts: latency 2 * 10, of a byte 1, all ranks of a host together. Within a host the hop is unknown: a
    quarter of 10 in the middle, nothing or all of it at the ends; of two ranks it takes two hops, and a byte.

    Gathers of 100, 60, 60, 100 take half of an all-reduce; reductions of 60 and 100 a whole one, and one between hosts.
    """
    for times, middle in ((0.25, on_hosts(2)), *zip((0.0, 1.0), others_of(on_hosts(2), {}), strict=False)):
        found = changed(middle, {"fsdp.within_hosts": True})
        gathers = times * (4 * 20 + 320) / 2
        reductions = times * (2 * 20 + 160) + 2 * 20 + 160
        assert step_ns(found) == pytest.approx(COMPUTE_NS + gathers + reductions)
    unshared = [*others_of(on_hosts(2), {})][-1]
    found = changed(unshared, {"fsdp.within_hosts": True})
    assert step_ns(found) == pytest.approx(COMPUTE_NS + 0.25 * 200 + 0.25 * 200 + 2 * 20 + 160 / 2)


def test_shards_within_hosts_of_nodes_that_are_set():
    """On one host the measured hop is that within: 10, and a byte in 1. Four ranks on two hosts, with another link."""
    settings = {"nodes": 2, "fsdp.within_hosts": True, "link.between_alpha_us": 0.05, "link.between_gb_per_s": 0.5}
    found = changed(on_hosts(1), settings)
    assert found.sharding.hybrid == Hybrid(2, Link(20.0, 1.0), Link(100.0, 0.5))
    assert step_ns(found) == pytest.approx(COMPUTE_NS + (4 * 20 + 320) / 2 + (2 * 20 + 160) + 2 * 100 + 320)
    assert [*others_of(on_hosts(1), {})] == []
    eight = changed(on_hosts(1), {**settings, "world_size": 8})
    assert (len(eight.steps), eight.sharding.hybrid.shards) == (8, 4)
    assert eight.sharding.hybrid.within == Link(60.0, 1 / 1.5)


def test_a_link_within_hosts_that_was_measured():
    """An all-reduce of the two ranks of a host takes 8 and 1/4 a byte, a gather half of that."""
    link = {"link.within_alpha_us": 0.008, "link.within_gb_per_s": 4.0}
    found = changed(on_hosts(2), {"fsdp.within_hosts": True, **link})
    assert found.sharding.hybrid.within == Link(8.0, 4.0)
    assert step_ns(found) == pytest.approx(COMPUTE_NS + (4 * 8 + 80) / 2 + 2 * 8 + 40 + 2 * 20 + 160)
    assert len([*others_of(on_hosts(2), link)]) == 1  # many ranks at once
    with pytest.raises(Missing, match=r"no effect without fsdp\.within_hosts"):
        changed(on_hosts(2), link)
    with pytest.raises(Missing, match="both its latency and its bandwidth"):
        changed(on_hosts(2), {"fsdp.within_hosts": True, "link.within_alpha_us": 1.0})


def test_units_of_a_replicated_model_within_hosts():
    gradients = Pass(5.0, 60.0, 80.0, (20.0, 40.0, 60.0, 80.0))
    replicated = StepModel(
        {rank: [RankStep((gradients,), 15.0)] for rank in range(4)}, (10,) * 4, Caps.of(), Link(60.0, 1 / 1.5), hosts=2
    )
    both = changed(replicated, {"wrapper": "fsdp", "fsdp.units": 2, "fsdp.within_hosts": True})
    whole = changed(replicated, {"wrapper": "fsdp", "fsdp.units": 2})
    assert both.sharding.hybrid is not None
    assert step_ns(both) < step_ns(whole)
    with pytest.raises(Missing, match="does not call fully_shard"):
        changed(replicated, {"fsdp.within_hosts": True})


@pytest.mark.parametrize(
    ("of", "settings", "why"),
    [
        (on_hosts(1), {}, "several hosts"),
        (on_hosts(4), {}, "two or more ranks on each host"),
        (on_hosts(2), {"nodes": 3}, "4 ranks are on 3 hosts"),
    ],
)
def test_ranks_that_have_no_groups(of, settings, why):
    with pytest.raises(Missing, match=why):
        changed(of, {"fsdp.within_hosts": True, **settings})


def test_what_a_recorded_mesh_does_not_show():
    recorded = model(ranks=4, sharding=Sharding(("a", "b"), hybrid=HYBRID))
    assert changed(recorded, {"fsdp.within_hosts": True}) == recorded
    for settings in (
        {"fsdp.within_hosts": False},
        {"wrapper": "ddp"},
        {"world_size": 8},
        {"link.alpha_us": 1.0},
        {"link.gb_per_s": 1.0},
    ):
        with pytest.raises(Missing, match="two-dimensional mesh"):
            changed(recorded, settings)
    kept = changed(recorded, {"fsdp.reshard_after_forward": False})
    assert step_ns(recorded) - step_ns(kept) == pytest.approx(2 * 10 + 160 / 4 + 8)
    halved = changed(recorded, {"fsdp.reduce_dtype": "bf16"})
    assert step_ns(recorded) - step_ns(halved) == pytest.approx(80 / 2 + 80 / 0.5)
    merged = changed(recorded, {"fsdp.units": 1})
    assert step_ns(recorded) - step_ns(merged) == pytest.approx(2 * 10 + 20 + 60 + 4 + 4 + 2)  # with their hooks
    silent = recorded.without_transfers()
    assert step_ns(silent) == COMPUTE_NS


def test_the_links_that_a_run_shows():
    """Two reductions of 100 and 300 bytes in 120 and 320, of which latency is at least 0 and nearly 120 at most."""
    found = seen(2, [(100.0, 120.0), (300.0, 320.0)], [(100.0, 50.0)])
    assert found.within == Link(60.0, pytest.approx((100 / 60 + 300 / 260) / 2))
    assert found.between == Link(25.0, 4.0)
    (least, _), (most, _) = found.others
    assert (least.alpha_ns, most.alpha_ns) == (0.0, 0.95 * 120)
    recorded = model([STEP], ranks=4, sharding=Sharding(("a", "b"), hybrid=found))
    assert [each.sharding.hybrid.within for each in variants_of(recorded)] == [least, most]
    assert variants_of(model()) == ()
    for times in ([], [(1.0, 1.0)]):
        with pytest.raises(Missing, match="how long units are reduced"):
            seen(2, times, [])


def test_cpu_offloading_changes_nothing_on_cpus():
    with pytest.raises(Missing, match="the host's memory holds the shards already"):
        changed(model(), {"fsdp.offload_policy": True})
    assert changed(model(), {"fsdp.offload_policy": False}) == model()

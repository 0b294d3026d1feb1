"""Many ranks with planted outliers: they are named, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptune.measure import measure
from dptune.measure.communication.calls import Call
from dptune.measure.communication.matching import RankCalls, match
from dptune.measure.outliers.devices import slow_devices
from dptune.measure.outliers.links import slow_links
from dptune.measure.outliers.places import places, shared
from dptune.measure.outliers.thresholds import upper_limit
from dptune.measured.outliers import OutlierFigures

from .many_ranks import DATA, GEMM, LAYERS, OPTIMIZER, PER_HOST, STEPS, TENSOR, Planted, run

STEP = LAYERS * (GEMM + TENSOR) + DATA + OPTIMIZER


def outliers(folder: Path, hosts: int, planted: Planted, **how: object) -> OutlierFigures:
    found: OutlierFigures = measure(run(folder, hosts, planted, **how)).outliers
    return found


def places_of(found: OutlierFigures) -> list[tuple[str, str]]:
    return [(place.kind, place.place) for place in found.late]


@pytest.mark.long
def test_two_slow_hosts_three_stragglers_and_one_slow_link(tmp_path: Path) -> None:
    """12 hosts of 4. GPUs of two take 1.2 times as long, three ranks idle for 2 ms, one data group transfers longer."""
    slow = [rank for host in (3, 10) for rank in range(host * PER_HOST, (host + 1) * PER_HOST)]
    stragglers = {5: 2_000.0, 30: 2_100.0, 45: 2_000.0}
    planted = Planted(
        gemm_times=dict.fromkeys(slow, 1.2),
        delays=lambda rank, number: stragglers.get(rank, 0.0),
        data_times={2: 2.5},
    )
    found = outliers(tmp_path, 12, planted)
    assert sorted(places_of(found)) == [
        ("host", "node03"),
        ("host", "node10"),
        ("rank", "30"),
        ("rank", "45"),
        ("rank", "5"),
    ]
    for place in found.late:
        extra = 2_000 + 100 * (30 in place.ranks) if place.kind == "rank" else 0.2 * GEMM * LAYERS
        assert place.lag_ns == pytest.approx(1000 * extra, rel=0.1), place.place
        assert place.late_share == 1.0
        slow_gpu = place.cause.startswith("slow GPU: same kernels 1.1")
        assert slow_gpu if place.kind == "host" else place.cause == "unexplained idle time"
    assert sorted(device.rank for device in found.slow_devices) == slow
    assert {device.host for device in found.slow_devices} == {"node03", "node10"}
    (link,) = found.slow_links
    assert link.ranks == list(range(2, 48, PER_HOST))
    assert link.times == pytest.approx(2.5, rel=0.02)
    assert found.unsteady_hosts == []
    assert not found.take_turns
    everything = found.gains[-1]
    assert everything.ranks == sorted([*slow, *stragglers])
    assert [len(gain.ranks) for gain in found.gains] == [1, 2, 11]
    # Only rank 30 is in the slow data group. It holds up the next steps; without it, the slow hosts do, by 1.2 ms.
    step_us = STEP + 1.5 * DATA + 2_100
    assert found.gains[0].ranks == [30]
    assert found.gains[0].share == pytest.approx(900 / step_us, rel=0.05)
    assert everything.share == pytest.approx(2_100 / step_us, rel=0.05)


@pytest.mark.long
def test_a_healthy_job_has_no_outliers(tmp_path: Path) -> None:
    found = outliers(tmp_path, 4, Planted())
    assert (found.late, found.slow_devices, found.slow_links, found.unsteady_hosts, found.gains) == ([], [], [], [], [])
    assert not found.take_turns
    assert len(found.ranks) == 16
    assert [host.host for host in found.hosts] == ["node00", "node01", "node02", "node03"]


@pytest.mark.long
def test_ranks_that_take_turns_are_no_stragglers(tmp_path: Path) -> None:
    """In each step another rank of another host idles for 2 ms."""
    found = outliers(tmp_path, 4, Planted(delays=lambda rank, step: 2_000.0 if rank == (5 * step) % 16 else 0.0))
    assert found.late == []
    assert found.take_turns
    assert found.latest_ranks == STEPS
    assert found.latest_ns == pytest.approx(2_000_000, rel=0.1)


@pytest.mark.long
def test_a_slow_switch_and_one_gpu(tmp_path: Path) -> None:
    """All hosts of one rack idle; all-reduces inside one host of the other rack take 3 times as long."""

    def name(host: int) -> str:
        return f"rack{host // 4}-n{host % 4}"

    rack = range(4 * PER_HOST, 6 * PER_HOST)
    planted = Planted(delays=lambda rank, step: 1_500.0 if rank in rack else 0.0, tensor_times={1: 3.0})
    found = outliers(tmp_path, 6, planted, name=name)
    assert places_of(found) == [("hosts", "rack1-n*")]
    assert found.late[0].hosts == ["rack1-n0", "rack1-n1"]
    assert found.late[0].lag_ns == pytest.approx(1_500_000, rel=0.1)
    assert [link.hosts for link in found.slow_links] == [["rack0-n1"]]
    assert found.slow_link_hosts == ["rack0-n1"]


@pytest.mark.long
def test_one_position_in_the_tensor_groups_and_an_unsteady_host(tmp_path: Path) -> None:
    """The first rank of each host computes for longer; a host is late in two steps of six."""
    first = dict.fromkeys(range(0, 4 * PER_HOST, PER_HOST), 1.15)
    planted = Planted(gemm_times=first, delays=lambda rank, step: 1_200.0 * (rank // PER_HOST == 2 and step in (2, 4)))
    found = outliers(tmp_path, 4, planted)
    assert places_of(found) == [("position", "tensor 0")]
    assert found.late[0].ranks == list(first)
    assert [unsteady.host for unsteady in found.unsteady_hosts] == ["node02"]


def test_fewer_than_eight_ranks_are_not_compared(tmp_path: Path) -> None:
    measured = measure(run(tmp_path, 1, Planted()))
    assert measured.known("outliers") is None
    assert measured.missing["outliers"] == "fewer than 8 ranks share collectives"


@pytest.mark.long
def test_the_gain_of_the_slowest_is_the_time_that_the_others_wait(tmp_path: Path) -> None:
    """One rank of 8 takes 1.3 times as long for its GEMMs: without that, steps are shorter by just that time."""
    found = outliers(tmp_path, 2, Planted(gemm_times={6: 1.3}))
    extra = 0.3 * GEMM * LAYERS
    assert places_of(found) == [("rank", "6")]
    assert found.gains[0].ranks == [6]
    assert found.gains[0].share == pytest.approx(extra / (STEP + extra), rel=0.05)


def test_places_by_hand() -> None:
    hosts = {rank: f"a{rank // 2}" for rank in range(8)}
    known = places(hosts, {rank: {"pipeline": rank // 4} for rank in range(8)})
    assert {place.name for place in known if place.kind == "host"} == {"a0", "a1", "a2", "a3"}
    assert {place.name for place in known if place.kind == "position"} == {"pipeline 0", "pipeline 1"}
    assert [place.name for place in shared([0, 1, 2, 3], known)] == ["pipeline 0"]
    assert [place.name for place in shared([0, 1, 4], known)] == ["a0", "4"]
    assert shared([], known) == []


@given(st.lists(st.floats(0, 1e9), max_size=30), st.floats(0, 1e9))
def test_most_values_are_below_the_limit(values: list[float], least: float) -> None:
    limit = upper_limit(np.array(values), least)
    assert limit >= least
    assert sum(value > limit for value in values) <= len(values) / 2


def test_a_slow_link_is_shown_by_its_largest_messages() -> None:
    """Of four pairs of ranks the last takes three times as long, with messages of three sizes, the largest between."""
    sizes = (2**17, 2**20, 2**18)
    ranks = []
    for rank in range(8):
        group, times = str(rank // 2), 3 if rank >= 6 else 1
        calls = [
            Call(0, "all_reduce", 1_000_000 * at, size // 100 * times, group, 2, "float32", size)
            for at, size in enumerate(size for size in sizes for _ in range(3))
        ]
        ranks.append(RankCalls(rank, "cuda:0", 0, [0], calls))
    found, hosts = slow_links(match(ranks, 8), {rank: f"node{rank // 2}" for rank in range(8)})
    assert [(link.ranks, link.hosts, link.message_bytes) for link in found] == [([6, 7], ["node3"], 2**20)]
    assert (found[0].transfer_ns, found[0].others_ns) == (3 * (2**20 // 100), 2**20 // 100)
    assert hosts == ["node3"]


def test_gpus_are_compared_by_the_kernels_that_they_share() -> None:
    """Rank 3 runs a kernel of its own, and the shared one 1.2 times as long; rank 4 runs nothing that others do."""
    usual = {("gemm", 10): 1000}
    by_rank = dict.fromkeys((0, 1, 2, 5), usual)
    by_rank |= {3: {("gemm", 10): 1200, ("odd", 1): 50_000}, 4: {("gemm", 11): 9000}}
    assert slow_devices(by_rank) == [(3, 1.2)]

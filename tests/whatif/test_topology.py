"""Links of other topologies, by hand: two ranks were measured, a hop of 5 ns and 1 byte per ns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptune.measured import Missing
from dptune.whatif.cpu.shared_link import Link
from dptune.whatif.cpu.topology import ALGORITHMS, lacks_network, relinked

MEASURED = Link(10.0, 1.0, lanes=2)  # of two ranks 2 hops, each of half of the bytes
SLOW = {"link.between_alpha_us": 0.1, "link.between_gb_per_s": 0.25}


@pytest.mark.parametrize(
    ("settings", "alpha_ns", "ns_per_byte"),
    [
        ({}, 10, 1),
        ({"world_size": 4}, 30, 1.5),
        ({"world_size": 8}, 70, 1.75),
        ({"world_size": 8, "allreduce.algorithm": "tree"}, 30, 2),  # 2 * 3 hops
        ({"world_size": 6, "allreduce.algorithm": "tree"}, 30, 2),
        ({"world_size": 8, "nodes": 2}, 70, 1.75),  # links between nodes are like those within
        ({"world_size": 8, "nodes": 2, **SLOW}, 1400, 7),  # 14 hops of 100, and 1.75 bytes at a quarter
        ({"world_size": 8, "nodes": 2, "allreduce.algorithm": "tree", **SLOW}, 600, 8),
        # Within 4 ranks 6 hops of 5 and 1.5; between 2 nodes 2 of 100, and 1 byte of each at a quarter.
        ({"world_size": 8, "nodes": 2, "allreduce.algorithm": "hierarchical", **SLOW}, 230, 5.5),
        ({"world_size": 8, "nodes": 4, "allreduce.algorithm": "hierarchical", **SLOW}, 610, 7),  # 2 of 5, 6 of 100
    ],
)
def test_by_hand(settings, alpha_ns, ns_per_byte):
    link = relinked(MEASURED, 2, 1, settings)
    assert link.alpha_ns == pytest.approx(alpha_ns)
    assert 1 / link.bytes_per_ns == pytest.approx(ns_per_byte)
    assert link.lanes == 2


def test_of_a_rank_a_node_only_the_link_between_counts():
    """2 hops of 100, and 1 byte of each at a quarter, in whatever way they reduce; a quicker link is quicker."""
    for algorithm in ("ring", "hierarchical"):
        link = relinked(MEASURED, 2, 1, {"nodes": 2, "allreduce.algorithm": algorithm, **SLOW})
        assert (link.alpha_ns, 1 / link.bytes_per_ns) == pytest.approx((200, 4))
    quick = relinked(MEASURED, 2, 1, {"nodes": 2, "link.between_alpha_us": 0.001, "link.between_gb_per_s": 10})
    assert (quick.alpha_ns, 1 / quick.bytes_per_ns) == pytest.approx((2, 0.1))


def test_of_ranks_on_several_hosts_the_link_measured_is_that_between_them():
    assert relinked(MEASURED, 2, 2, {}) == MEASURED
    assert relinked(MEASURED, 2, 2, {"nodes": 2}) == MEASURED
    three = relinked(MEASURED, 2, 2, {"world_size": 3})
    assert (three.alpha_ns, 1 / three.bytes_per_ns) == pytest.approx((20, 4 / 3))  # 4 hops, 4 thirds
    for settings in ({"nodes": 2}, {}):
        other = relinked(MEASURED, 2, 2, {**settings, **SLOW})
        assert (other.alpha_ns, 1 / other.bytes_per_ns) == pytest.approx((200, 4))
    four = relinked(MEASURED, 2, 2, {"world_size": 4, "nodes": 2})
    assert (four.alpha_ns, 1 / four.bytes_per_ns) == pytest.approx((30, 1.5))
    for settings in ({"nodes": 1}, {"world_size": 4, "nodes": 2, "allreduce.algorithm": "hierarchical"}):
        with pytest.raises(Missing, match="the link within a host is unknown"):
            relinked(MEASURED, 2, 2, settings)


def test_a_network_between_nodes_that_nobody_measured():
    """Ranks of several hosts measured it; of one host, only what is set is known of it: its bandwidth."""
    assert lacks_network(1, {"nodes": 2})
    assert lacks_network(1, {"world_size": 8, "nodes": 4, "link.between_alpha_us": 5.0})
    assert not lacks_network(2, {"nodes": 2})
    for settings in ({}, {"nodes": 1}, {"world_size": 8}, {"nodes": 2, "link.between_gb_per_s": 1.0}):
        assert not lacks_network(1, settings)


def test_what_cannot_be():
    with pytest.raises(Missing, match="spread evenly over 3 nodes"):
        relinked(MEASURED, 2, 1, {"nodes": 3})
    with pytest.raises(Missing, match="a single node has no link to others"):
        relinked(MEASURED, 2, 1, {"world_size": 8, **SLOW})
    with pytest.raises(Missing, match="a single rank"):
        relinked(MEASURED, 1, 1, {"nodes": 1})


@given(
    before=st.integers(2, 64),
    times=st.integers(1, 8),
    alpha=st.floats(0, 1e6, allow_subnormal=False),
    rate=st.floats(1e-3, 1e3),
    algorithm=st.sampled_from(ALGORITHMS),
)
def test_of_one_node_hierarchical_is_a_ring_and_as_it_was_is_as_measured(before, times, alpha, rate, algorithm):
    measured, ranks = Link(alpha, rate), {"world_size": before * times}
    own, ring = (relinked(measured, before, 1, {**ranks, "allreduce.algorithm": one}) for one in (algorithm, "ring"))
    if algorithm == "hierarchical":
        assert (own.alpha_ns, own.bytes_per_ns) == pytest.approx((ring.alpha_ns, ring.bytes_per_ns))
    if times == 1:
        assert (ring.alpha_ns, ring.bytes_per_ns) == pytest.approx((alpha, rate))
    assert ring.alpha_ns >= alpha * 0.999
    assert ring.bytes_per_ns <= rate * 1.001
    apart = relinked(measured, before, 1, {**ranks, "nodes": before * times, "allreduce.algorithm": "hierarchical"})
    assert (apart.alpha_ns, apart.bytes_per_ns) == pytest.approx((ring.alpha_ns, ring.bytes_per_ns))

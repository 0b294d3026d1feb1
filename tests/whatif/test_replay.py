"""Buckets, a shared link, and steps that are small enough to replay by hand."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptune.whatif.cpu.buckets import MIB, Caps, assign
from dptune.whatif.cpu.model import Pass, RankStep, StepModel
from dptune.whatif.cpu.replay import durations, step_ns
from dptune.whatif.cpu.shared_link import Link, Wire

SIZES = st.lists(st.integers(1, 10 * MIB), min_size=1, max_size=40)


def test_a_bucket_is_closed_by_the_gradient_with_which_it_reaches_its_cap():
    assert assign([3, 4, 5, 1, 9], Caps((7,))) == [[0, 1], [2, 3, 4]]
    assert assign([3, 4, 5, 1, 9], Caps((3, 6))) == [[0], [1, 2], [3, 4]]
    assert assign([3, 4, 5], Caps((100,))) == [[0, 1, 2]]


def test_only_the_default_has_a_first_bucket_of_its_own():
    assert Caps.of().bytes == (MIB, 25 * MIB)
    assert Caps.of(25).bytes == (25 * MIB,)
    assert Caps.of(0.5).bytes == (MIB // 2,)
    assert Caps.of(each_mb=[1, 8]).bytes == (MIB, 8 * MIB)


@given(SIZES, st.lists(st.integers(1, 20 * MIB), min_size=1, max_size=4))
def test_buckets_hold_every_gradient_once_in_order(sizes, caps):
    buckets = assign(sizes, Caps(tuple(caps)))
    assert [place for bucket in buckets for place in bucket] == list(range(len(sizes)))
    for number, bucket in enumerate(buckets[:-1]):
        cap = caps[min(number, len(caps) - 1)]
        assert sum(sizes[place] for place in bucket) >= cap > sum(sizes[place] for place in bucket[:-1])


def ends(ready, sizes, link):
    """When each collective ends that every rank is ready for at these moments."""
    wire, ended, asked = Wire(link, 0.0), [0.0] * len(sizes), 0
    while asked < len(sizes) or wire.busy:
        now = min(wire.upcoming(), ready[asked] if asked < len(sizes) else float("inf"))
        for number in wire.move(now):
            ended[number] = now
        while asked < len(sizes) and ready[asked] <= now:
            wire.ask(asked, sizes[asked])
            asked += 1
    return ended


def test_one_after_the_other_on_one_lane():
    """10 of latency and 1 byte per ns: 10 + 100, then 10 + 50; the third comes later than the link is free."""
    assert ends([0, 20, 500], [100, 50, 10], Link(10, 1.0)) == pytest.approx([110, 170, 520])


def test_two_lanes_share_the_link():
    """From 0 on the first alone; from 20 on at half the rate with 90 left: till 200, though the second waits till 30.

    That has 100 - 85 = 15 left by then, at the full rate: 215.
    """
    assert ends([0, 20], [100, 100], Link(10, 1.0, lanes=2)) == pytest.approx([200, 215])


def test_a_third_waits_for_a_lane():
    """The first two move from 10 on and end at 30 (10 bytes each at half the rate); the third begins then."""
    assert ends([0, 0, 0], [10, 10, 10], Link(10, 1.0, lanes=2)) == pytest.approx([30, 30, 50])


def test_latency_of_two_in_flight():
    """The first has waited 4 of 10 when the second comes: then both wait 3 times as long, the first till 4 + 18.

    Till 82 it moves 30 of its bytes, at half the rate. The second waits till 34, and has moved 24 of its 40 by then,
    when it is alone: till 98.
    """
    crowded = Link(10, 1.0, lanes=2, crowding=((8.0, 3.0), (1000.0, 3.0)))
    assert ends([0, 4], [30, 40], crowded) == pytest.approx([82, 98])
    assert ends([0, 500], [30, 40], crowded) == pytest.approx([40, 550])


def test_latency_of_sizes_between():
    link = Link(10, 1.0, lanes=2, crowding=((10.0, 4.0), (1000.0, 2.0)))
    assert [link.crowded(size) for size in (1, 10, 100, 1000, 5000)] == pytest.approx([4, 4, 3, 2, 2])


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(1, 1e6)), min_size=1, max_size=12),
    st.floats(0, 1e4),
    st.integers(1, 3),
)
def test_no_byte_is_faster_than_the_link_and_no_link_idles_while_bytes_wait(calls, alpha, lanes):
    ready, sizes = [time for time, _ in sorted(calls)], [size for _, size in calls]
    link = Link(alpha, 2.0, lanes)
    ended = ends(ready, sizes, link)
    for start, size, end in zip(ready, sizes, ended, strict=True):
        assert end >= start + link.alone_ns(size) * (1 - 1e-6)
    serial = 0.0
    for start, size in zip(ready, sizes, strict=True):
        serial = max(serial, start) + link.alone_ns(size)
    assert max(ended) <= serial * (1 + 1e-6) + 1e-6
    if lanes == 1:
        assert max(ended) == pytest.approx(serial)
        assert all(one <= other for one, other in pairwise(ended))


def one_pass(ready, backward, forward=100.0, loader=0.0):
    return Pass(loader, forward, backward, tuple(ready))


def test_two_ranks_by_hand():
    """Rank 1's second gradient is 20 later. Buckets of one gradient each, 30 bytes at 1 byte per ns, no latency.

    Passes begin at 100. The first bucket: ready at 110, ends at 140. The second: ready at 170 (rank 1), ends at 200.
    Each rank waits until 200, copies nothing, and has 50 after it: 250. So both ranks begin the next step together.
    """
    a = RankStep((one_pass([10, 50], 60),), 50)
    b = RankStep((one_pass([10, 70], 75),), 50)
    model = StepModel({0: [a], 1: [b]}, (30, 30), Caps((1,)), Link(0, 1.0))
    assert durations(model) == {0: [pytest.approx(250)], 1: [pytest.approx(250)]}
    one = StepModel({0: [a], 1: [b]}, (30, 30), Caps((100,)), Link(0, 1.0))
    assert step_ns(one) == pytest.approx(100 + 70 + 60 + 50)  # one bucket of 60 bytes, ready at 170


def test_starting_a_collective_delays_what_is_computed_after_it():
    """As above with 5 for each start: buckets ready at 115 and 180, which is past the first's end: 210, then 50."""
    a = RankStep((one_pass([10, 50], 60),), 50)
    b = RankStep((one_pass([10, 70], 75),), 50)
    model = StepModel({0: [a], 1: [b]}, (30, 30), Caps((1,)), Link(0, 1.0), start_ns=5)
    assert step_ns(model) == pytest.approx(260)


def test_a_bucket_is_copied_back_once_it_and_those_before_it_are_there():
    """Ends at 140 and 200 as above; rank 1's compute ends at 175: copies till 175 + 30 * 0.5 = 190, then 200 + 15."""
    a = RankStep((one_pass([10, 50], 60),), 50)
    b = RankStep((one_pass([10, 70], 75),), 50)
    model = StepModel({0: [a], 1: [b]}, (30, 30), Caps((1,)), Link(0, 1.0), copy_ns_per_byte=0.5)
    assert step_ns(model) == pytest.approx(265)


def test_passes_that_communicate_nothing_run_through():
    """Two micro-batches, of which the second communicates: 100 + 60, then as a step of one."""
    quiet, loud = one_pass([], 60), one_pass([10, 50], 60)
    step = RankStep((quiet, loud), 50)
    model = StepModel({0: [step], 1: [step]}, (30, 30), Caps((100,)), Link(0, 1.0))
    assert step_ns(model) == pytest.approx(160 + 100 + 50 + 60 + 50)


def test_a_rank_that_computes_longer_makes_all_wait():
    quick, slow = RankStep((one_pass([50], 50),), 10), RankStep((one_pass([50], 50, forward=300),), 10)
    model = StepModel({0: [quick], 1: [slow]}, (30,), Caps((100,)), Link(0, 1.0))
    assert durations(model) == {0: [pytest.approx(390)], 1: [pytest.approx(390)]}


def test_compute_beside_a_collective_is_slowed():
    """Twice as slow beside it. Ready at 110; the collective lasts till 140, in which 15 are computed of the 40 that are
    left: the other 25 till 165. The second bucket is ready then, and lasts till 195; the last 10 of compute take 20.
    """
    a = RankStep((one_pass([10, 50], 60),), 50)
    model = StepModel({0: [a], 1: [a]}, (30, 30), Caps((1,)), Link(0, 1.0), slowdown=2.0)
    assert step_ns(model) == pytest.approx(195 + 50)
    long = RankStep((one_pass([10, 50], 90),), 50)  # 40 after the second: 15 beside it, then 25
    model = StepModel({0: [long], 1: [long]}, (30, 30), Caps((1,)), Link(0, 1.0), slowdown=2.0)
    assert step_ns(model) == pytest.approx(195 + 25 + 50)


def test_only_ranks_that_compute_are_slowed():
    """Rank 1 begins at 300, after rank 0 is through with its own compute; neither computes beside the collective."""
    quick, slow = RankStep((one_pass([50], 50),), 10), RankStep((one_pass([50], 50, forward=300),), 10)
    model = StepModel({0: [quick], 1: [slow]}, (30,), Caps((100,)), Link(0, 1.0), slowdown=4.0)
    assert durations(model) == {0: [pytest.approx(390)], 1: [pytest.approx(390)]}


@given(
    st.lists(st.tuples(st.floats(1, 1e6), st.integers(1, 10**6)), min_size=1, max_size=8),
    st.floats(1, 8),
    st.floats(0, 1e3),
    st.sampled_from([1e-3, 1.0, 1e18, float("inf")]),
    st.integers(1, 3),
)
def test_a_slowdown_costs_at_most_what_is_computed_beside_the_collective(parts, slowdown, alpha, rate, lanes):
    ready = [sum(took for took, _ in parts[: at + 1]) for at in range(len(parts))]
    ranks = [
        RankStep((one_pass([time * share for time in ready], ready[-1] * 1.1, forward=7),), 5) for share in (1, 0.9)
    ]
    sizes = tuple(size for _, size in parts)
    plain = StepModel(
        {0: [ranks[0]], 1: [ranks[1]]},
        sizes,
        Caps((10**5,)),
        Link(alpha, rate, lanes),
        start_ns=3,
    )
    free, slowed = step_ns(plain), step_ns(replace(plain, slowdown=slowdown))
    most = (slowdown - 1) * (ready[-1] * 1.1 + 3 * len(parts))
    # Of two in flight the first may end earlier where the second comes later, and let a third in: by no more than that.
    sooner = most if lanes > 1 else 0.0
    assert (free - sooner) * (1 - 1e-9) <= slowed <= (free + most) * (1 + 1e-9)


def test_no_rate_is_too_quick_to_end():
    """Late in a run, where what is left takes less than a clock of 64 bits can tell."""
    for rate in (1e18, float("inf")):
        assert ends([1e9, 1e9, 1e9], [4, 1e9, 8], Link(0, rate, lanes=2)) == pytest.approx([1e9] * 3)


def test_a_collective_beside_compute_is_slowed():
    """Half as quick while both compute: from 110 to 160 it moves 25, then the last 5 till 165; the second till 195."""
    a = RankStep((one_pass([10, 50], 60),), 50)
    model = StepModel({0: [a], 1: [a]}, (30, 30), Caps((1,)), Link(0, 1.0), beside=2.0)
    assert step_ns(model) == pytest.approx(195 + 50)


def test_a_collective_is_slowed_less_where_only_some_compute():
    """From 160 to 200 only one does, so two thirds as quick: the 5 left take 7.5, the next 30 have 25 / 3 left."""
    a, b = (RankStep((one_pass([10, 50], backward),), 50) for backward in (60, 100))
    model = StepModel({0: [a], 1: [b]}, (30, 30), Caps((1,)), Link(0, 1.0), beside=2.0)
    assert step_ns(model) == pytest.approx(200 + 25 / 3 + 50)


def test_latency_is_slowed_too():
    """10 of it from 110 on at half the speed till 130; then 60 bytes, 15 of them till 160, the other 45 till 205."""
    a = RankStep((one_pass([10, 10], 60),), 50)
    model = StepModel({0: [a], 1: [a]}, (30, 30), Caps((100,)), Link(10, 1.0), beside=2.0)
    assert step_ns(model) == pytest.approx(205 + 50)

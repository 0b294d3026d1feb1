"""Which calls of the ranks are one exchange: by number, by order, and with calls missing at the head or the tail."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.measure.exchange.calls import Call
from dptune.measure.exchange.clocks import clocks
from dptune.measure.exchange.matching import RankCalls, match
from dptune.measure.exchange.waiting import splits

KINDS = ("all_reduce", "all_gather", "broadcast")


def calls(kinds, *, first_ns=0, every_ns=1000, late=(), **more):
    """One call each `every_ns`; call n begins `late[n]` later and ends with the others."""
    found = []
    for at, kind in enumerate(kinds):
        wait = late[at] if at < len(late) else 0
        start = first_ns + at * every_ns + wait
        found.append(Call(0, kind, start, 500 - wait, **more))
    return found


def rank(number, found, base_ns=0):
    return RankCalls(number, f"cuda:{number}", base_ns, [7], found)


def starts(exchanges):
    return [exchange.start_ns.tolist() for exchange in exchanges]


def test_by_sequence_number_whatever_the_order():
    first = [Call(0, "all_reduce", 10 * n, 5, group="g", group_size=2, sequence=n) for n in (1, 2, 3)]
    second = [Call(0, "all_reduce", 10 * n, 5, group="g", group_size=2, sequence=n) for n in (3, 2)]
    found = match([rank(0, first), rank(1, second)], 2)
    assert [(one.basis, one.complete, one.step) for one in found] == [("sequence", True, 7)] * 2
    assert starts(found) == [[20, 20], [30, 30]]


def test_by_order_within_each_group_and_step():
    inner = [
        Call(0, "all_reduce", 1, 5, group="tp", group_size=2),
        Call(0, "all_gather", 20, 5, group="dp", group_size=2),
    ]
    outer = [
        Call(0, "all_gather", 21, 5, group="dp", group_size=2),
        Call(0, "all_reduce", 30, 5, group="tp", group_size=2),
    ]
    found = match([rank(0, inner), rank(1, outer)], 2)
    assert sorted((one.kind, one.basis, one.start_ns.tolist()) for one in found) == [
        ("all_gather", "order", [20, 21]),
        ("all_reduce", "order", [1, 30]),
    ]


def test_groups_of_one_name_with_other_members_are_not_one():
    found = match(
        [
            rank(n, calls(["all_reduce"], group="tp", group_size=2, members=f"[{n // 2 * 2}, {n // 2 * 2 + 1}]"))
            for n in range(4)
        ],
        4,
    )
    assert [exchange.ranks.tolist() for exchange in found] == [[0, 1], [2, 3]]
    assert all(exchange.complete for exchange in found)


def test_a_call_that_misses_at_the_head_shifts_the_others():
    kinds = ["all_reduce"] * 5
    whole, headless = calls(kinds), calls(kinds)[1:]
    found = match([rank(0, whole), rank(1, headless, base_ns=10**9)], 2)
    assert [one.basis for one in found] == ["shift"] * 4
    assert [int(one.end_ns[1] - one.end_ns[0]) for one in found] == [10**9] * 4


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 3)), min_size=3, max_size=20),
    st.integers(0, 2),
    st.integers(0, 2),
    st.sampled_from([0, 17, -(10**12)]),
    st.randoms(use_true_random=False),
)
def test_missing_heads_and_tails(keys, head, tail, base_ns, random):
    """Calls at uneven times: the shift at which ends agree is the true one."""
    times, at = [], 0
    for _ in keys:
        at += random.randrange(1000, 100_000)
        times.append(at)
    model = [Call(0, kind, t, 400, message_bytes=size) for (kind, size), t in zip(keys, times, strict=True)]
    kept = model[head : len(model) - tail]
    found = match([rank(0, model), rank(1, [Call(**vars(call)) for call in kept], base_ns=base_ns)], 2)
    if len(kept) > 1:
        assert starts(found) == [[call.start_ns, call.start_ns + base_ns] for call in kept]


def test_what_only_some_ranks_were_read_of_is_not_split():
    pair = [rank(n, calls(["all_reduce", "broadcast"], group="g", group_size=3)) for n in range(2)]
    assert [one.complete for one in match(pair, 3)] == [False, False]
    assert splits(match(pair, 3)) == {}
    whole = [rank(n, calls(["all_reduce", "broadcast"], group="g", group_size=2)) for n in range(2)]
    assert [one.splits for one in match(whole, 2)] == [True, False]  # a broadcast's root may leave first


def test_transfer_is_what_the_last_to_come_takes():
    found = match([rank(0, calls(["all_reduce"])), rank(1, calls(["all_reduce"], late=[300]))], 2)
    assert (found[0].transfer_ns, found[0].waiting_ns) == (200, 300)
    both = splits(found)
    first, second = both[0, "cuda:0"], both[1, "cuda:1"]
    assert (first.waiting.start_ns.tolist(), first.waiting.end_ns.tolist()) == ([0], [300])
    assert (first.transfer.start_ns.tolist(), first.transfer.end_ns.tolist()) == ([300], [500])
    assert (second.waiting.total_ns, second.transfer.total_ns) == (0, 200)


@pytest.mark.parametrize(
    ("hosts", "basis", "ahead_ns", "residual_ns"),
    [
        ({0: "a", 1: "b"}, "collectives", 5_000, 2),
        ({0: None, 1: None}, "collectives", 5_000, 2),
        ({0: "a", 1: "a"}, "host", 0, 5_000),
    ],
)
def test_clocks(hosts, basis, ahead_ns, residual_ns):
    ends = np.array([0, 2, -2, 3, -3]) + 5_000
    second = [
        Call(0, "all_reduce", call.start_ns + int(off), call.dur_ns)
        for call, off in zip(calls(["all_reduce"] * 5), ends, strict=True)
    ]
    found = clocks(match([rank(0, calls(["all_reduce"] * 5)), rank(1, second)], 2), hosts)
    assert (found[1].basis, found[1].ahead_ns, found[1].residual_ns) == (basis, ahead_ns, residual_ns)


def test_clocks_that_nothing_connects_are_not_compared():
    groups = [rank(n, calls(["all_reduce"], group=f"g{n // 2}", group_size=2)) for n in range(4)]
    found = clocks(match(groups, 4), {0: "a", 1: "b", 2: "c", 3: "a"})
    assert sorted(found) == [0, 1, 3]  # rank 3 shares the host of rank 0, rank 2 nothing
    assert found[3].residual_ns is None


def test_clocks_are_compared_by_way_of_ranks_between():
    near = [Call(0, "all_reduce", 0, 500, group="x", group_size=2)]
    both = [*near, Call(0, "all_reduce", 1000, 500, group="y", group_size=2)]
    far = [Call(0, "all_reduce", 1000, 500, group="y", group_size=2)]
    found = clocks(
        match([rank(0, near), rank(1, both, base_ns=30), rank(2, far, base_ns=100)], 3), {0: "a", 1: "b", 2: "c"}
    )
    assert {number: clock.ahead_ns for number, clock in found.items()} == {0: 0, 1: 30, 2: 100}

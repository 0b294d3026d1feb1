"""Which calls of the ranks are one collective: by number, by order, and with calls missing at the head or the tail."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.measure import measure
from dptune.measure.communication.alignment import by_time
from dptune.measure.communication.calls import Call
from dptune.measure.communication.clocks import clocks, matched
from dptune.measure.communication.collectives import collectives
from dptune.measure.communication.matching import RankCalls, match
from dptune.measure.communication.waiting import splits
from dptune.trace import load

from . import handmade as by_hand

KINDS = ("all_reduce", "all_gather", "broadcast")
VIEWS = [SimpleNamespace(rank=rank, windows=1, trace=SimpleNamespace(findings=())) for rank in (0, 1)]


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


def starts(matches):
    return [match.start_ns.tolist() for match in matches]


def test_by_sequence_number_whatever_the_order():
    first = [Call(0, "all_reduce", 10 * n, 5, group="g", group_size=2, sequence=n) for n in (1, 2, 3)]
    second = [Call(0, "all_reduce", 10 * n, 5, group="g", group_size=2, sequence=n) for n in (3, 2)]
    found = match([rank(0, first), rank(1, second)], 2)
    assert [(one.basis, one.complete, one.step) for one in found] == [("sequence", True, 7)] * 2
    assert starts(found) == [[20, 20], [30, 30]]


def test_of_calls_that_share_a_sequence_number_each_has_its_place():
    """A trace of one rank that counts anew in the backward pass; with another number of them only the first is sure."""

    def calls(numbers):
        times = enumerate(numbers)
        return [Call(0, "all_gather", 10 * at, 5, group="g", group_size=2, sequence=number) for at, number in times]

    found = match([rank(0, calls([0, 1, 0, 1])), rank(1, calls([0, 1, 0, 1]))], 2)
    assert starts(found) == [[0, 0], [10, 10], [20, 20], [30, 30]]
    assert {one.basis for one in found} == {"sequence"}
    found = match([rank(0, calls([0, 1, 0, 1])), rank(1, calls([1, 0, 1]))], 2)
    assert starts(found) == [[0, 10], [10, 0], [30, 20]]


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
    assert [match.ranks.tolist() for match in found] == [[0, 1], [2, 3]]
    assert all(match.complete for match in found)


def test_a_call_that_misses_at_the_head_shifts_the_others():
    kinds = ["all_reduce"] * 5
    whole, headless = calls(kinds), calls(kinds)[1:]
    found = match([rank(0, whole), rank(1, headless, base_ns=10**9)], 2)
    assert [one.basis for one in found] == ["shift"] * 4
    assert [int(one.end_ns[1] - one.end_ns[0]) for one in found] == [10**9] * 4


@pytest.mark.parametrize("host", ["a", None])
def test_a_call_that_misses_in_the_middle_is_told_by_the_time(host):
    kinds = ["all_reduce"] * 10
    whole, lacking = calls(kinds), calls(kinds, late=[50] * 10)
    del lacking[5]
    found, known = matched([rank(0, whole), rank(1, lacking)], 2, {0: host, 1: host})
    assert starts(found) == [[1000 * at, 1000 * at + 50] for at in range(10) if at != 5]
    assert {one.basis for one in found} == {"shift"}
    assert (known[1].ahead_ns, known[1].residual_ns) == (0, 0)


def test_calls_that_miss_at_both_ends_of_ranks_that_share_a_clock():
    """As many on each rank, so that each would be taken for the next."""
    kinds = ["all_reduce"] * 10
    found, _ = matched([rank(0, calls(kinds)[:-1]), rank(1, calls(kinds)[1:])], 2, {0: "a", 1: "a"})
    assert starts(found) == [[1000 * at] * 2 for at in range(1, 9)]


def test_calls_that_were_never_one_are_not_matched():
    """The third of rank 1 comes 3,000 ns late: the other has left long ago."""
    kinds = ["all_reduce"] * 3
    ranks = [rank(0, calls(kinds)), rank(1, [*calls(kinds)[:2], *calls(["all_reduce"], first_ns=5000)])]
    found, _ = matched(ranks, 2, {0: "a", 1: "a"})
    assert starts(found) == [[0, 0], [1000, 1000]]
    numbered = [rank(own.rank, [replace(c, sequence=at) for at, c in enumerate(own.calls)]) for own in ranks]
    assert len(matched(numbered, 2, {0: "a", 1: "a"})[0]) == 3  # what bears a number is sure


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("longest", [0, 1])
def test_a_call_of_no_duration_loses_no_other(longest, at):
    """Rank `longest` has one call more, so that the ranks are matched by time; one call of either was not timed."""
    kinds = ["all_reduce"] * 5
    whole, lacking = calls(kinds), calls(kinds)
    del lacking[2]
    for ranks in ([[*whole[:at], replace(whole[at], dur_ns=0), *whole[at + 1 :]], lacking], [whole, lacking[:]]):
        if ranks[0] is whole:
            ranks[1][at] = replace(lacking[at], dur_ns=0)
        ordered = ranks if longest == 0 else ranks[::-1]
        found, _ = matched([rank(number, found) for number, found in enumerate(ordered)], 2, {0: "a", 1: "a"})
        assert starts(found) == [[1000 * n, 1000 * n] for n in (0, 1, 3, 4)]
        untimed = [one for one in found if (one.end_ns == one.start_ns).any()]
        assert [one.splits for one in found].count(False) == len(untimed) <= 1
        assert sum(one.waiting_ns for one in found if one.splits) == 0


@given(st.data())
def test_rows_by_time_hold_every_call_of_the_rank_with_most(data):
    """Whatever the starts and durations: also none, also several at one time."""
    call = st.builds(
        lambda kind, start, dur: Call(0, kind, start, dur),
        st.sampled_from(("all_reduce", "broadcast")),
        st.integers(0, 30),
        st.sampled_from((0, 0, 1, 5, 40)),
    )
    ranks = data.draw(st.lists(st.lists(call, min_size=1, max_size=6), min_size=2, max_size=4))
    rows = by_time(ranks, [data.draw(st.integers(-10, 10)) for _ in ranks])
    longest = max(range(len(ranks)), key=lambda at: (len(ranks[at]), -at))
    assert sorted((row[longest].start_ns, row[longest].kind) for row in rows) == sorted(
        (one.start_ns, one.kind) for one in ranks[longest]
    )
    for at, found in enumerate(ranks):
        placed = [id(row[at]) for row in rows if row[at] is not None]
        assert len(placed) == len(set(placed)) <= len(found)
    for row in rows:
        assert len({one.kind for one in row if one is not None}) == 1


@pytest.mark.parametrize("untimed", [0, 1])
@pytest.mark.parametrize("duration", [0, "0", -5, 0.0004, None])
def test_one_collective_kernel_without_a_duration_ends_no_report(tmp_path, duration, untimed):
    """In one rank of two, of which one lacks its last call: the untimed one is not split, the two others are."""
    ranks = []
    for number in range(2):
        events = []
        for at in range(4):
            events += [
                by_hand.step(at, 1000 * at, 1000 * at + 1000),
                *by_hand.launched("gemm", 1000 * at + 1, 1000 * at + 10, 1000 * at + 200, 2 * at),
                by_hand.launch(2 * at + 1, 1000 * at + 20, 1000 * at + 21),
                by_hand.kernel(by_hand.NCCL, 1000 * at + 300 + 100 * number, 1000 * at + 600, 2 * at + 1, stream=9),
            ]
        ranks.append(events)
    del ranks[0][-1]
    victim = ranks[untimed][4]
    if duration is None:
        del victim["dur"]
    else:
        victim["dur"] = duration
    measured = by_hand.measure_events(tmp_path, *ranks)
    (found,) = measured.collectives
    assert (found.calls, found.shortest_ns) == (7, 0) if duration is not None else found.calls >= 6
    assert (found.transfer_ns, found.waiting_ns) == (200_000, 2 * 100_000)


@pytest.mark.parametrize(
    ("config", "groups"),
    [
        ({"0": 4, "1": 2}, None),
        ({"0": 4, "1": 4}, 4),
        ({"0": 4}, 4),
    ],
)
def test_calls_that_name_no_group_are_one_only_where_every_group_holds_all_ranks(tmp_path, config, groups):
    """Two pairs reduce from 20 on, one for 40 us and one for 4: nobody waits, if they are not one collective."""
    for number in range(4):
        lasts = 40 if number < 2 else 4
        events = [event("user_annotation", "ProfilerStep#0", 0, 100), event("cpu_op", "aten::mm", 1, 5)]
        events += [event("user_annotation", "gloo:all_reduce", 20, lasts) | {"tid": 2}]
        about = {"backend": "gloo", "rank": number, "world_size": 4}
        about |= {"pg_config": [{"pg_name": name, "pg_size": size} for name, size in config.items()]}
        document = {"schemaVersion": 1, "distributedInfo": about, "traceEvents": events}
        (tmp_path / f"{number}.json").write_text(json.dumps(document))
    measured = measure(load([tmp_path]))
    (found,) = measured.collectives
    if groups:
        assert (found.matched, found.waiting_ns) == ("order", 2 * 36_000)
    else:
        assert "matched" in found.missing
        assert (measured.account.exposed_waiting_ns, measured.account.exposed_unsplit_ns) == (0, 2 * 44_000)


def test_more_ranks_than_a_group_holds_are_several_groups():
    assert match([rank(n, calls(["all_reduce"], group="tp", group_size=2)) for n in range(4)], 4) == []


@pytest.mark.parametrize("numbers", [(1, 2), (None, None)])
def test_an_uneven_collective_is_as_large_as_its_largest_part(numbers):
    """Rank 0 sends 4,000 bytes, then 16,000; rank 1 the other way round, each time 100 ns after rank 0."""
    sizes = [4_000, 16_000]
    ranks = [
        rank(
            number,
            [
                Call(0, "all_to_all", 1000 * at + late, 250 - late, "g", 2, "f", size, sequence=sequence)
                for at, (size, sequence) in enumerate(zip(own, numbers, strict=True))
            ],
        )
        for number, (own, late) in enumerate([(sizes, 0), (sizes[::-1], 100)])
    ]
    (row,) = collectives(ranks, match(ranks, 2), VIEWS)
    assert (row.message_bytes, row.calls, row.transfer_ns, row.waiting_ns) == (16_000, 4, 150, 200)
    assert row.algbw_gb_per_s == pytest.approx(16_000 / 150)


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
    found = match([rank(0, model), rank(1, [replace(call) for call in kept], base_ns=base_ns)], 2)
    if len(kept) > 1:
        assert starts(found) == [[call.start_ns, call.start_ns + base_ns] for call in kept]


def test_what_only_some_ranks_were_read_of_is_not_split():
    pair = [rank(n, calls(["all_reduce", "broadcast"], group="g", group_size=3)) for n in range(2)]
    assert [one.complete for one in match(pair, 3)] == [False, False]
    assert all(not len(one.transfer) and not len(one.waiting) for one in splits(match(pair, 3)).values())
    late = [rank(0, [Call(0, "all_reduce", 100, 400)]), rank(1, [Call(0, "all_reduce", 300, 200)])]
    (waits, last) = splits(match(late, 3)).values()  # the third rank may have come later still: at least 200
    assert (waits.waiting.total_ns, last.waiting.total_ns, len(waits.transfer)) == (200, 0, 0)
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
    ("hosts", "apart_ns", "basis", "ahead_ns", "residual_ns"),
    [
        ({0: "a", 1: "b"}, 5_000, "collectives", 5_000, 2),
        ({0: None, 1: None}, 5_000, "collectives", 5_000, 2),
        ({0: "a", 1: "a"}, 900, "host", 0, 900),
        ({0: "a", 1: "a"}, 5_000, "collectives", 5_000, 2),  # calls of 500 ns: not one clock
    ],
)
def test_clocks(hosts, apart_ns, basis, ahead_ns, residual_ns):
    ends = np.array([0, 2, -2, 3, -3]) + apart_ns
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


NUMBERED, UNNUMBERED, LACKING = (3, 4), (None, None), (None,)


def event(category, name, start, length, **args):
    return {"ph": "X", "cat": category, "name": name, "pid": 9, "tid": 9, "ts": start, "dur": length, "args": args}


def kernel(name, launched, correlation, **args):
    """A kernel of 10 us that begins 5 us after its launch."""
    args |= {"device": 0, "stream": 7, "correlation": correlation}
    launch = event("cuda_runtime", "cudaLaunchKernel", launched, 1, correlation=correlation)
    return [launch, event("kernel", name, launched + 5, 10, **args)]


def row(folder, *ranks, kind="allreduce"):
    """The one row of collectives of a run; of each rank, by step of 100 us, the sequence numbers of its calls.

    A step holds calls of 4,000 bytes at 20 and 40 us, or only at 40, and computes at 60.
    """
    told = {"Collective name": kind, "In msg nelems": 1000, "Out msg nelems": 1000, "dtype": "Float"}
    told |= {"Group size": 2, "Process Group Name": "0"}
    for number, steps in enumerate(ranks):
        events = []
        for step, sequences in enumerate(steps):
            begins, first = 100 * step, 10 * step
            events += [event("user_annotation", f"ProfilerStep#{step}", begins, 100)]
            events += kernel("gemm", begins + 60, first)
            for at, sequence in enumerate(sequences, 3 - len(sequences)):
                numbered = {} if sequence is None else {"Seq": sequence}
                events += kernel("ncclDevKernel", begins + 20 * at, first + at, **told, **numbered)
        about = {"backend": "nccl", "rank": number, "world_size": 2}
        document = {"schemaVersion": 1, "distributedInfo": about, "traceEvents": events}
        (folder / f"{number}.json").write_text(json.dumps(document))
    (found,) = measure(load([folder])).collectives
    return found


@pytest.mark.parametrize(
    ("first", "second", "matched"),
    [
        ((NUMBERED, NUMBERED), (NUMBERED, NUMBERED), "sequence"),
        ((UNNUMBERED, UNNUMBERED), (UNNUMBERED, UNNUMBERED), "order"),
        ((UNNUMBERED, UNNUMBERED), (LACKING, LACKING), "shift"),
        ((NUMBERED, UNNUMBERED), (NUMBERED, UNNUMBERED), "order"),
        ((LACKING, NUMBERED), (UNNUMBERED, NUMBERED), "shift"),
        ((UNNUMBERED, UNNUMBERED), (UNNUMBERED, LACKING), "shift"),
    ],
)
def test_a_row_is_matched_as_surely_as_the_least_sure_of_its_collectives(tmp_path, first, second, matched):
    found = row(tmp_path, first, second)
    assert (found.matched, found.transfer_ns, found.waiting_ns) == (matched, 10_000, 0)


def test_what_does_not_tell_its_transfer_is_matched_too(tmp_path):
    found = row(tmp_path, (UNNUMBERED,) * 2, (UNNUMBERED,) * 2, kind="broadcast")
    assert (found.kind, found.matched, found.known("transfer_ns")) == ("broadcast", "order", None)


def test_calls_that_are_matched_with_none_say_why(tmp_path):
    only = row(tmp_path, (UNNUMBERED,) * 2)
    assert (only.calls, only.missing["matched"]) == (4, "this needs the traces of at least two ranks")
    other = row(tmp_path, (UNNUMBERED, ()), ((), UNNUMBERED))
    assert (other.calls, other.missing["matched"]) == (4, "no calls of this kind and size were matched across ranks")


def test_rows_of_two_types_and_one_size_keep_their_own_collectives():
    """Both of 4,096 bytes, moved in 100 ns as fp32 and in 400 ns as bf16."""
    of_type = {"Float": 100, "BFloat16": 400}
    both = [
        Call(0, "all_reduce", 1000 * at, lasts, group="g", group_size=2, dtype=dtype, message_bytes=4096)
        for at, (dtype, lasts) in enumerate(of_type.items())
    ]
    ranks = [rank(0, both), rank(1, both)]
    rows = collectives(ranks, match(ranks, 2), VIEWS)
    assert {row.dtype: row.transfer_ns for row in rows} == of_type

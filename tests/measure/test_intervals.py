"""Interval arithmetic against a bitmap with one bool per nanosecond."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.measure.device.timeline import Split, timeline
from dptune.measure.intervals import NOTHING, Intervals, distinct, first_begun
from dptune.measured import IDLE, Account
from dptune.trace.kernels import Work

SIZE = 60
PAIRS = st.lists(st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)), max_size=12)
SHIFT = st.sampled_from([0, 4_366_538_191_428_949, 2**62])  # offsets at which float64 would lose nanoseconds


def bitmap(pairs):
    bits = np.zeros(SIZE, dtype=bool)
    for start, end in pairs:
        bits[start:end] = True
    return bits


def union(pairs, shift=0):
    start, end = (np.array([pair[at] + shift for pair in pairs], dtype=np.int64) for at in (0, 1))
    return Intervals.union(start, end)


def unpacked(intervals, shift=0):
    for ends, starts in zip(intervals.end_ns[:-1], intervals.start_ns[1:], strict=True):
        assert ends < starts  # disjoint, ascending, and merged where they touch
    return bitmap([(int(s) - shift, int(e) - shift) for s, e in zip(intervals.start_ns, intervals.end_ns, strict=True)])


@given(PAIRS, SHIFT)
def test_union(pairs, shift):
    found = union(pairs, shift)
    assert (unpacked(found, shift) == bitmap(pairs)).all()
    assert found.total_ns == bitmap(pairs).sum()


@settings(deadline=None)
@given(PAIRS, PAIRS, SHIFT)
def test_or_and_minus(left, right, shift):
    a, b = union(left, shift), union(right, shift)
    assert (unpacked(a | b, shift) == (bitmap(left) | bitmap(right))).all()
    assert (unpacked(a & b, shift) == (bitmap(left) & bitmap(right))).all()
    assert (unpacked(a - b, shift) == (bitmap(left) & ~bitmap(right))).all()


@given(PAIRS, st.integers(0, SIZE), st.integers(0, SIZE), SHIFT)
def test_within(pairs, start, end, shift):
    window = bitmap([(start, end)])
    assert (unpacked(union(pairs, shift).within(start + shift, end + shift), shift) == (bitmap(pairs) & window)).all()


@given(PAIRS, SHIFT)
def test_which_times_lie_in_a_set(pairs, shift):
    """Of an empty set none."""
    times = np.arange(SIZE, dtype=np.int64)
    assert union(pairs, shift).hold(times + shift).tolist() == bitmap(pairs).tolist()


@given(PAIRS, PAIRS, SHIFT)
def test_lengths_in_windows(pairs, windows, shift):
    windows = [(min(pair), max(pair)) for pair in windows]
    start, end = (np.array([window[at] + shift for window in windows], dtype=np.int64) for at in (0, 1))
    found = union(pairs, shift).lengths(start, end).tolist()
    assert found == [int((bitmap(pairs) & bitmap([window])).sum()) for window in windows]


@settings(deadline=None)
@given(st.lists(PAIRS, min_size=7, max_size=7), st.integers(0, SIZE - 1), st.integers(1, SIZE), SHIFT)
def test_the_account_gives_each_nanosecond_to_the_highest_class(sets, start, length, shift):
    compute, comm, copy, memset, moving, waiting, loading = sets
    end = min(start + length, SIZE)

    def causes(idle):
        left = dict.fromkeys(IDLE, NOTHING)
        return left | {"input_idle_ns": idle & union(loading, shift), "host_idle_ns": idle - union(loading, shift)}

    time = dict(zip(Work, (union(pairs, shift) for pairs in (compute, comm, copy, memset)), strict=True))
    split = Split(union(moving, shift), union(waiting, shift))
    spent = timeline(shift, SIZE + shift, time, split, causes)
    found = spent.account(start + shift, end + shift)
    counted = dict.fromkeys(Account.model_fields, 0) | {"window_ns": end - start}
    a, b, c, d, moves, waits, load = (bitmap(pairs) for pairs in sets)
    for at in range(start, end):
        counted["communication_ns"] += int(b[at])
        counted["hidden_communication_ns"] += int(a[at] and b[at])
        part = "transfer" if moves[at] else "waiting" if waits[at] else "unsplit"
        for active, name in (
            (a[at], "compute_ns"),
            (b[at], f"exposed_{part}_ns"),
            (c[at], "copy_ns"),
            (d[at], "memset_ns"),
            (load[at], "input_idle_ns"),
            (True, "host_idle_ns"),
        ):
            if active:
                counted[name] += 1
                break
    assert {name: getattr(found, name) for name in Account.model_fields} == counted
    assert found.exposed_communication_ns == sum(counted[f"exposed_{p}_ns"] for p in ("transfer", "waiting", "unsplit"))
    assert found.idle_ns == counted["input_idle_ns"] + counted["host_idle_ns"]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 15), st.integers(0, 3)), max_size=15), SHIFT)
def test_the_first_begun_of_each_group_is_that_of_its_intervals_alone(found, shift):
    starts, lengths, groups = (np.array([one[at] for one in found], dtype=np.int64) for at in range(3))
    since, until = first_begun(starts + shift, starts + shift + lengths, groups)
    for group in range(4):
        own = groups == group
        alone = first_begun(starts[own] + shift, (starts + lengths)[own] + shift)
        assert [each.tolist() for each in alone] == [since[own].tolist(), until[own].tolist()]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 15)), max_size=15))
def test_of_those_in_flight_the_first_begun_has_the_moment(found):
    starts = np.array([start for start, _ in found], dtype=np.int64)
    ends = np.array([start + length for start, length in found], dtype=np.int64)
    since, until = first_begun(starts, ends)
    for moment in range(60):
        active = [at for at, (start, length) in enumerate(found) if start <= moment < start + length]
        has = [at for at in range(len(found)) if since[at] <= moment < until[at]]
        assert has == sorted(active, key=lambda at: (found[at][0], at))[:1]


@given(st.lists(st.integers(-5, SIZE), max_size=30), SHIFT)
def test_values_that_differ(found, shift):
    values = np.array([value + shift for value in found], dtype=np.int64)
    assert distinct(values).tolist() == sorted({*values.tolist()})

"""Interval arithmetic against a bitmap with one bool per nanosecond."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.measure.balance import account
from dptune.measure.intervals import Intervals
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


@settings(deadline=None)
@given(PAIRS, PAIRS, PAIRS, PAIRS, PAIRS, st.integers(0, SIZE - 1), st.integers(1, SIZE), SHIFT)
def test_the_account_gives_each_nanosecond_to_the_highest_class(
    compute, comm, copy, memset, loading, start, length, shift
):
    end = min(start + length, SIZE)
    time = dict(zip(Work, (union(pairs, shift) for pairs in (compute, comm, copy, memset)), strict=True))
    found = account(start + shift, end + shift, time, union(loading, shift))
    counted = dict.fromkeys(("compute", "exposed", "copy", "memset", "input", "unexplained", "comm", "hidden"), 0)
    a, b, c, d, load = (bitmap(pairs) for pairs in (compute, comm, copy, memset, loading))
    for at in range(start, end):
        counted["comm"] += int(b[at])
        counted["hidden"] += int(a[at] and b[at])
        if a[at]:
            counted["compute"] += 1
        elif b[at]:
            counted["exposed"] += 1
        elif c[at]:
            counted["copy"] += 1
        elif d[at]:
            counted["memset"] += 1
        elif load[at]:
            counted["input"] += 1
        else:
            counted["unexplained"] += 1
    assert found.model_dump() == {
        "window_ns": end - start,
        "compute_ns": counted["compute"],
        "exposed_communication_ns": counted["exposed"],
        "copy_ns": counted["copy"],
        "memset_ns": counted["memset"],
        "input_idle_ns": counted["input"],
        "unexplained_idle_ns": counted["unexplained"],
        "communication_ns": counted["comm"],
        "hidden_communication_ns": counted["hidden"],
    }

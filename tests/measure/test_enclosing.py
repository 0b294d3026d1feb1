import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptune.measure.host.enclosing import NOWHERE, Ranges, holding

OFFSETS = st.sampled_from([0, 1_700_000_000_000_000_000, -5_000_000_000_000_000])
RANGES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 25)), max_size=60)
QUERIES = st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 60), st.integers(0, 8)), max_size=20)


def ints(values):
    return np.array(values, dtype=np.int64)


def ranges(found, offset=0):
    thread, start, length = (ints([one[part] for one in found]) for part in range(3))
    return Ranges.of(thread, start + offset, start + length + offset)


def plain(found, thread, start, end, but=NOWHERE):
    """Of all ranges around [start, end) the one that began last, of those the shortest, of those the last given."""
    around = [
        (begin, -length, at)
        for at, (own, begin, length) in enumerate(found)
        if own == thread and begin <= start and begin + length >= end and at != but
    ]
    return max(around)[2] if around else NOWHERE


@given(RANGES, QUERIES, OFFSETS)
def test_the_innermost_range_is_that_of_a_plain_search(found, queries, offset):
    thread, start, length = (ints([one[part] for one in queries]) for part in range(3))
    own = ranges(found, offset)
    wanted = [plain(found, thread, start, start + length) for thread, start, length in queries]
    assert own.around(thread, start + offset, start + length + offset).tolist() == wanted
    moments = [plain(found, thread, start, start + 1) for thread, start, _ in queries]
    assert own.at(thread, start + offset).tolist() == moments
    assert own.hold(thread, start + offset).tolist() == [at != NOWHERE for at in moments]


@given(RANGES, st.lists(st.integers(-2, 60), max_size=6), OFFSETS)
def test_what_holds_a_moment_is_kept(found, moments, offset):
    class Columns:
        ts_ns = ints([start + offset for _, start, _ in found])

        @staticmethod
        def ends(rows):
            return ints([start + length + offset for _, start, length in found])[rows]

    kept = [at for at, (_, start, length) in enumerate(found) if any(start <= m < start + length for m in moments)]
    assert holding(Columns, np.arange(len(found)), ints(moments) + offset).tolist() == kept


@given(RANGES, OFFSETS)
def test_a_parent_is_the_innermost_other_range_around(found, offset):
    order = sorted(range(len(found)), key=lambda at: (found[at][1], -found[at][2], at))
    parents = ranges(found, offset).parents().tolist()
    for place, at in enumerate(order):
        thread, start, length = found[at]
        earlier = [found[other] if other in order[:place] else (-9, 0, 0) for other in range(len(found))]
        assert parents[at] == plain(earlier, thread, start, start + length)


def test_calls_within_calls():
    """step [0,100) > forward [10,60) > mm [20,30), add [30,40); backward [60,90), on another thread mm [20,30)."""
    own = ranges([(1, 0, 100), (1, 10, 50), (1, 20, 10), (1, 30, 10), (1, 60, 30), (2, 20, 10)])
    assert own.parents().tolist() == [NOWHERE, 0, 1, 1, 0, NOWHERE]
    times = ints([0, 9, 10, 25, 30, 40, 60, 95, 100, -1])
    assert own.at(np.ones_like(times), times).tolist() == [0, 0, 1, 2, 3, 1, 4, 0, NOWHERE, NOWHERE]
    assert own.around(ints([1, 2, 3]), ints([25, 25, 25]), ints([35, 30, 30])).tolist() == [1, 5, NOWHERE]


def test_no_ranges_hold_nothing():
    assert ranges([]).at(ints([1]), ints([0])).tolist() == [NOWHERE]
    assert ranges([]).hold(ints([1]), ints([0])).tolist() == [False]
    assert ranges([]).parents().tolist() == []


@pytest.mark.long
@pytest.mark.parametrize("depth", [1, 1000, 100_000])
def test_depth_and_siblings_take_the_same_few_rounds(depth):
    """`depth` ranges one in the other, then as many beside each other inside the outermost."""
    deep = [(0, at, 4 * depth - 2 * at) for at in range(depth)]
    beside = [(0, 4 * depth - at, 1) for at in range(depth - 1, 0, -1)]
    parents = ranges(deep + beside).parents().tolist()
    assert parents[:depth] == [NOWHERE, *range(depth - 1)]
    if depth > 1:
        # deep range n ends at 4 depth - n: the sibling at [4 depth - at, + 1) lies in those with n < at
        assert parents[depth:] == [at - 1 for at in range(depth - 1, 0, -1)]

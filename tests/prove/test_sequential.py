"""How often the looks are wrong together, how often they find what is there, and what an interval is."""

from itertools import combinations

import numpy as np
import pytest

from dptune.measure.comparing.verdict import critical_wins
from dptune.prove import sequential
from dptune.prove.sequential import LEVEL, LEVEL_OF_A_LOOK, LOOKS

SIDES = 20_000


def decided(difference, spread=1.0, seed=1):
    """Of many pairs of sides with normal noise the share that any look decides, and that it decides for the other."""
    random = np.random.default_rng(seed)
    a = random.normal(0, spread, (SIDES, LOOKS[-1]))
    b = random.normal(difference, spread, (SIDES, LOOKS[-1]))
    open_, slower, quicker = np.ones(SIDES, bool), 0, 0
    for runs in LOOKS:
        needed = critical_wins(runs, runs, LEVEL_OF_A_LOOK)
        wins = (b[:, :runs, None] > a[:, None, :runs]).sum(axis=(1, 2))
        slow, quick = open_ & (wins >= needed), open_ & (runs * runs - wins >= needed)
        slower, quicker = slower + slow.sum(), quicker + quick.sum()
        open_ &= ~slow & ~quick
        if runs >= LOOKS[1]:
            open_ &= ~((wins >= 0.42 * runs * runs) & (wins <= 0.58 * runs * runs))
    return (slower + quicker) / SIDES, quicker / SIDES


def test_sides_that_do_not_differ_are_told_apart_as_rarely_as_is_said():
    wrong, _ = decided(0.0)
    assert wrong == pytest.approx(LEVEL, abs=0.004)  # four standard errors of 20,000


@pytest.mark.parametrize(("spreads", "found"), [(1.0, 0.59), (1.5, 0.94), (2.0, 0.99)])
def test_differences_are_found_as_often_as_is_said(spreads, found):
    told, wrong_way = decided(spreads)
    assert told == pytest.approx(found, abs=0.02)
    assert wrong_way < 0.001


def test_the_first_look_counts_orders_by_hand():
    """Of the 924 orders of six and six, those in which B wins at least as many pairs, counted one by one."""
    a, b = [1.0, 2.0, 3.0, 4.0, 5.0, 7.5], [6.0, 7.0, 8.0, 9.0, 10.0, 11.0]
    wins = sum(one > other for one in b for other in a)
    tail = 0
    for places in combinations(range(12), 6):
        others = [place for place in range(12) if place not in places]
        tail += sum(one > other for one in places for other in others) >= wins
    seen = sequential.look(a, b)
    assert seen.p_value == pytest.approx(2 * tail / 924)
    assert sequential.decides(seen) == (2 * tail / 924 <= LEVEL_OF_A_LOOK)


def test_it_looks_only_where_both_sides_have_as_many_trials():
    assert sequential.look([1.0] * 5, [1.0] * 5) is None
    assert sequential.look([1.0] * 6, [1.0] * 7) is None
    assert sequential.look([1.0] * 7, [1.0] * 7) is None
    assert [sequential.look([1.0] * n, [2.0] * n).runs for n in LOOKS] == list(LOOKS)


def test_the_interval_leaves_out_one_where_a_look_decides():
    a, b = [10.0, 11.0, 12.0, 13.0, 14.0, 15.0], [20.0, 21.0, 22.0, 23.0, 24.0, 25.0]
    low, high = sequential.interval(a, b)
    assert sequential.decides(sequential.look(a, b))
    assert 1 < low < 20 / 15 + 0.2
    assert high <= 25 / 10
    assert sequential.interval(a[:3], b[:3]) is None


def test_it_is_hopeless_only_where_the_trials_lie_among_each_other():
    apart = [float(n) for n in range(1, 10)], [float(n) + 4 for n in range(1, 10)]
    among = [float(2 * n) for n in range(1, 10)], [float(2 * n) + 1 - 2 * (n % 2) for n in range(1, 10)]
    assert not sequential.hopeless(sequential.look(*apart), *apart)
    assert sequential.hopeless(sequential.look(*among), *among)
    few = among[0][:6], among[1][:6]
    assert not sequential.hopeless(sequential.look(*few), *few)

"""The test of pairs against signs that are counted one by one, against scipy's definition by hand, and its interval."""

from itertools import combinations_with_replacement, product
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptune.compare.signed_ranks import chance_of, critical_wins, means


@pytest.mark.parametrize("pairs", [1, 2, 5, 8])
def test_chances_are_those_of_all_signs(pairs):
    """Each way to give the ranks 1..n a sign is one of 2^n; its statistic is the sum of the ranks above."""
    sums = [sum(rank for rank, above in enumerate(signs, 1) if above) for signs in product((0, 1), repeat=pairs)]
    for wins in range(pairs * (pairs + 1) // 2 + 1):
        assert chance_of(pairs, wins) == pytest.approx(sum(one >= wins for one in sums) / 2**pairs)


@given(st.lists(st.integers(-1000, 1000).filter(bool), min_size=1, max_size=14, unique_by=abs))
def test_means_above_one_are_the_sum_of_the_ranks_above(differences):
    """Tukey: of different differences as many means lie above as their ranks (by size) add up to."""
    by_size = sorted(differences, key=abs)
    ranks = sum(rank for rank, one in enumerate(by_size, 1) if one > 0)
    found = means([1.0] * len(differences), [1.001**one for one in differences])
    assert sum(mean > 1 + 1e-9 for mean in found) == ranks
    assert len(found) == len(differences) * (len(differences) + 1) // 2


def test_the_tabled_critical_values():
    """Wilcoxon's table, two-sided: the lesser sum is at most 0 of 6 and 17 of 13 at 5 %, 9 of 13 at 1 %, 27 of 18."""
    for pairs, level, lesser in ((6, 0.05, 0), (13, 0.05, 17), (13, 0.01, 9), (18, 0.01, 27)):
        assert critical_wins(pairs, level) == pairs * (pairs + 1) // 2 - lesser
    assert critical_wins(5, 0.05) is None
    assert critical_wins(7, 0.0044) is None
    assert critical_wins(9, 0.0044) == 45  # all of one sign: 2 of 512


def test_means_by_hand():
    assert means([2.0, 4.0], [4.0, 2.0]) == [0.5, 1.0, 2.0]
    ratios = [1.1, 0.9, 1.3]
    by_hand = sorted(sqrt(one * other) for one, other in combinations_with_replacement(ratios, 2))
    assert means([1.0, 1.0, 1.0], ratios) == by_hand


@given(st.lists(st.floats(0.5, 2.0), min_size=9, max_size=20))
def test_the_interval_leaves_out_one_where_the_test_decides(ratios):
    found, needed = means([1.0] * len(ratios), ratios), critical_wins(len(ratios), 0.0044)
    above, below = sum(one > 1 for one in found), sum(one < 1 for one in found)
    assert (above >= needed) == (found[-needed] > 1)
    assert (below >= needed) == (found[needed - 1] < 1)

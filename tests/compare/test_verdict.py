"""The test of a comparison: against counting by hand, and in simulated runs that differ or do not."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptune.compare.verdict import LEVEL, chance_of, critical_wins, decide, runs_needed

SPREAD = 0.07  # of run medians between identical processes, as measured: docs/measuring.md
times = st.lists(st.integers(1, 10**12), min_size=3, max_size=7)


def counted(a: int, b: int, wins: int) -> float:
    """The share of all orders of a + b runs in which B is slower in so many pairs, by listing them."""
    orders = [
        sum(mine < place for place in chosen for mine in range(a + b) if mine not in chosen)
        for chosen in combinations(range(a + b), b)
    ]
    return sum(won >= wins for won in orders) / len(orders)


@pytest.mark.parametrize(("a", "b"), [(1, 1), (2, 3), (3, 3), (3, 5), (4, 4), (6, 4)])
def test_chances_are_those_of_listing_every_order(a: int, b: int) -> None:
    for wins in range(a * b + 1):
        assert chance_of(a, b, wins) == pytest.approx(counted(a, b, wins))


@pytest.mark.parametrize(
    ("runs", "lost"),
    [(4, 0), (5, 2), (6, 5), (7, 8), (8, 13), (9, 17), (10, 23), (15, 64), (20, 127)],  # any table of U, 5 %, two-sided
)
def test_critical_values_are_those_of_the_tables(runs: int, lost: int) -> None:
    assert critical_wins(runs, runs) == runs * runs - lost


def test_below_four_runs_a_side_nothing_can_be_decided() -> None:
    assert runs_needed() == 4
    assert critical_wins(3, 3) is None
    for a, b in ((1, 1), (1, 50), (2, 2), (3, 3), (2, 40)):
        verdict = decide([1.0 + i / 1e6 for i in range(a)], [9.0 + i for i in range(b)])
        assert verdict.outcome == "inconclusive"
        assert "at least 4" in verdict.reason
        assert set(verdict.missing) == {"p_value", "low_ratio", "high_ratio"}
        assert verdict.ratio > 8


def test_four_runs_that_lie_apart_decide_and_four_that_touch_do_not() -> None:
    apart = decide([100, 101, 102, 103], [104, 105, 106, 107])
    assert (apart.outcome, apart.p_value) == ("worse", pytest.approx(2 / 70))
    assert (apart.low_ratio, apart.high_ratio) == (104 / 103, 107 / 100)
    assert apart.ratio == pytest.approx(np.median([b / a for a in range(100, 104) for b in range(104, 108)]))
    assert decide([104, 105, 106, 107], [100, 101, 102, 103]).outcome == "better"
    touching = decide([100, 101, 102, 105], [104, 106, 107, 108])
    assert (touching.outcome, touching.p_value) == ("inconclusive", pytest.approx(4 / 70))
    assert touching.low_ratio < 1 < touching.high_ratio


def test_equal_times_count_for_neither() -> None:
    same = decide([100] * 6, [100] * 6)
    assert (same.outcome, same.ratio, same.low_ratio, same.high_ratio, same.p_value) == ("inconclusive", 1, 1, 1, 1)


@given(times, times)
def test_the_interval_leaves_out_no_change_exactly_where_the_test_decides(a: list[int], b: list[int]) -> None:
    verdict = decide(a, b)
    if verdict.known("p_value") is None:
        return
    assert verdict.low_ratio <= verdict.ratio <= verdict.high_ratio
    assert (verdict.outcome != "inconclusive") == (verdict.p_value <= LEVEL)


@given(times, times)
def test_swapping_the_sides_swaps_the_verdict(a: list[int], b: list[int]) -> None:
    swapped = {"better": "worse", "worse": "better", "inconclusive": "inconclusive"}
    one, other = decide(a, b), decide(b, a)
    assert other.outcome == swapped[one.outcome]
    if one.known("p_value") is not None:
        assert other.p_value == one.p_value
        assert other.low_ratio == pytest.approx(1 / one.high_ratio)


def decided(runs: int, slower: float, times: int, seed: int) -> tuple[float, float]:
    """How often B is called worse, and better, where it is slower by that share; lognormal run medians."""
    random = np.random.default_rng(seed)
    a = np.exp(random.normal(0, SPREAD, (times, runs)))
    b = (1 + slower) * np.exp(random.normal(0, SPREAD, (times, runs)))
    ratios = np.sort((b[:, None, :] / a[:, :, None]).reshape(times, -1), axis=1)
    needed = critical_wins(runs, runs)
    assert needed is not None
    for n in range(20):  # the same arithmetic as the verdict's, on many simulations at once
        outcome = decide(a[n].tolist(), b[n].tolist()).outcome
        low, high = ratios[n, -needed], ratios[n, needed - 1]
        assert outcome == ("worse" if low > 1 else "better" if high < 1 else "inconclusive")
    return float((ratios[:, -needed] > 1).mean()), float((ratios[:, needed - 1] < 1).mean())


@pytest.mark.long
@pytest.mark.parametrize("runs", [4, 5, 7, 10, 16])
def test_runs_that_do_not_differ_are_told_apart_no_more_often_than_the_level_says(runs: int) -> None:
    worse, better = decided(runs, 0.0, times=20_000, seed=runs)
    noise = 3 * (LEVEL * (1 - LEVEL) / 20_000) ** 0.5
    assert 0 < worse + better <= LEVEL + noise
    exact = 2 * chance_of(runs, runs, critical_wins(runs, runs) or 0)
    assert worse + better == pytest.approx(exact, abs=noise)


@pytest.mark.long
def test_the_power_that_the_documentation_states() -> None:
    page = (Path(__file__).parents[2] / "docs" / "commands.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) runs \| (\d+) % \| (\d+) % \| (\d+) % \|$", page, re.M)
    assert [int(row[0]) for row in rows] == [4, 6, 10, 20]
    for runs, *stated in rows:
        for slower, percent in zip((0.05, 0.10, 0.20), stated, strict=True):
            worse, _ = decided(int(runs), slower, times=20_000, seed=int(runs))
            assert 100 * worse == pytest.approx(int(percent), abs=1.5)

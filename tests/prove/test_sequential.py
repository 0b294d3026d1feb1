"""How often the looks are wrong together, how often they find what is there, and what an interval is."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from dptune.compare import signed_ranks, verdict
from dptune.prove import sequential
from dptune.prove.engine import _clear, _over
from dptune.prove.result import PAIRED, Side, Trial
from dptune.prove.sequential import LEVEL, LEVEL_OF_A_TEST, LEVEL_OF_EXCLUDING, LOOKS, Times
from dptune.prove.task import Task

SIDES = 20_000
TASK = Task(Side(name="a"), Side(name="b"), launches={}, settings={"A": {}, "B": {}}, sources={})


def apart_by(a, b, level):
    """What a look compares of each of many pairs of sides, ascending, and how many of it decide."""
    runs = a.shape[1]
    if runs < PAIRED:
        every = (b[:, :, None] - a[:, None, :]).reshape(len(a), runs * runs)
        return np.sort(every, axis=1), verdict.critical_wins(runs, runs, level)
    (one, other), more = np.triu_indices(runs), b - a
    return np.sort((more[:, one] + more[:, other]) / 2, axis=1), signed_ranks.critical_wins(runs, level)


def decided(difference, alike, together=0.0):
    """Of many pairs of sides with normal noise the share that any look decides, and that it decides for the other.

    `alike` is the correlation of the noise of a trial's mean step with that of its fast step, `together` that of the
    trials of a pair.
    """
    random = np.random.default_rng(1)

    def noise():
        own, other = random.normal(0, 1, (2, SIDES, LOOKS[-1]))
        return np.stack([own, alike * own + np.sqrt(1 - alike**2) * other])

    machine = np.sqrt(together) * noise() if together else 0.0
    a, b = (side + machine + np.sqrt(1 - together) * noise() for side in (0.0, difference))
    told, left = np.zeros(SIDES, int), np.arange(SIDES)  # what was decided of each, and which are still looked at
    for runs in LOOKS:
        compared = [
            apart_by(one[left, :runs], two[left, :runs], LEVEL_OF_A_TEST) for one, two in zip(a, b, strict=True)
        ]
        apart, needed = [own for own, _ in compared], compared[0][1]
        pairs, wins = apart[0].shape[1], [(own > 0).sum(axis=1) for own in apart]
        middle = [(own[:, (pairs - 1) // 2] + own[:, pairs // 2]) / 2 for own in apart]  # they are ascending
        hit = [(own >= needed) | (pairs - own >= needed) for own in wins]
        allowed = (apart[0][:, -needed] <= middle[1]) & (middle[1] <= apart[0][:, needed - 1])
        hit = hit[0] | (hit[1] & allowed & (middle[0] * middle[1] > 0))
        told[left[hit]] = np.sign(middle[0][hit])
        ends = hit
        if runs >= LOOKS[1]:
            ends = hit | np.logical_and(*((own >= 0.42 * pairs) & (own <= 0.58 * pairs) for own in wins))
        left = left[~ends]
    return (told != 0).mean(), (told < 0).mean()


@pytest.mark.parametrize(
    ("alike", "together", "wrong"),
    [
        pytest.param(0.0, 0.0, 0.019, marks=pytest.mark.thorough),
        (0.4, 0.0, LEVEL),
        pytest.param(1.0, 0.0, 0.012, marks=pytest.mark.thorough),
        pytest.param(0.4, 0.25, 0.019, marks=pytest.mark.thorough),
        pytest.param(0.4, 0.5, 0.017, marks=pytest.mark.thorough),
    ],
)
def test_sides_that_do_not_differ_are_told_apart_as_rarely_as_is_said(alike, together, wrong):
    assert decided(0.0, alike, together)[0] == pytest.approx(wrong, abs=0.004)  # four standard errors of 20,000


@pytest.mark.parametrize(
    ("spreads", "alike", "together", "found"),
    [
        (1.0, 1.0, 0.0, 0.82),
        pytest.param(1.0, 0.0, 0.0, 0.97, marks=pytest.mark.thorough),
        pytest.param(1.5, 1.0, 0.0, 0.99, marks=pytest.mark.thorough),
        pytest.param(1.5, 0.0, 0.0, 1.0, marks=pytest.mark.thorough),
        pytest.param(1.0, 1.0, 0.25, 0.915, marks=pytest.mark.thorough),
        pytest.param(1.0, 0.0, 0.25, 0.99, marks=pytest.mark.thorough),
        pytest.param(1.0, 1.0, 0.5, 0.98, marks=pytest.mark.thorough),
        pytest.param(1.0, 0.0, 0.5, 1.0, marks=pytest.mark.thorough),
    ],
)
def test_differences_are_found_as_often_as_is_said(spreads, alike, together, found):
    told, wrong_way = decided(spreads, alike, together)
    assert told == pytest.approx(found, abs=0.01)
    assert wrong_way < 0.001


def excluded(longer):
    """Of many pairs of sides with normal noise the share of which any look excludes as much as `longer` is above 0."""
    random = np.random.default_rng(2)
    a, b = random.normal(0, 1, (SIDES, LOOKS[-1])), random.normal(-longer, 1, (SIDES, LOOKS[-1]))
    left = np.arange(SIDES)  # of which no look has excluded it
    for runs in LOOKS:
        apart, needed = apart_by(a[left, :runs], b[left, :runs], 2 * LEVEL_OF_EXCLUDING)
        left = left[apart[:, needed - 1] >= 0]
    return 1 - len(left) / SIDES


@pytest.mark.parametrize(
    ("longer", "share"), [(0.0, 0.05), (1.0, 0.97), pytest.param(1.5, 1.0, marks=pytest.mark.thorough)]
)
def test_what_is_allowed_is_excluded_as_rarely_as_is_said(longer, share):
    """Of sides that are apart by just what is allowed, and of those closer by so many times the noise."""
    assert excluded(longer) == pytest.approx(share, abs=0.004 if share < 0.5 else 0.01)


def test_what_is_excluded_by_hand():
    """Of 36 ratios the interval at 3 % leaves out as many at either end as the test takes to decide."""
    a, b = alike([10.0, 11.0, 12.0, 13.0, 14.0, 15.0]), alike([11.0, 12.0, 13.0, 14.0, 15.0, 16.0])
    ratios = sorted(one.mean / other.mean for one in b for other in a)
    needed = verdict.critical_wins(6, 6, 0.03)
    assert 18 < needed < verdict.critical_wins(6, 6, LEVEL_OF_A_TEST)
    assert sequential.at_most(a, b) == ratios[needed - 1] < sequential.look(a, b).high_ratio


@pytest.mark.parametrize(
    ("factor", "limit", "most", "ended"),
    [
        (1.2, None, 18, "decided"),
        (1.0, None, 18, "hopeless"),
        (1.2, 0.05, 18, "decided"),  # more than is allowed
        (0.8, 0.05, 18, "decided"),
        (1.03, 0.05, 18, "excluded"),  # apart, by less than is allowed, and more is excluded
        (1.03, 0.032, 18, None),  # or is not yet
        (1.03, 0.032, 9, "decided"),
        (1.0, 0.05, 18, "excluded"),
    ],
)
def test_when_trials_end(factor, limit, most, ended):
    a = alike([100 + at / 10 for at in range(9)])
    b = alike([factor * (100 + (at * 4 % 9) / 10) for at in range(9)])
    assert _clear(replace(TASK, limit=limit, most=most), sequential.look(a, b), a, b) == ended


@pytest.mark.parametrize(
    ("factor", "within", "most", "ended"),
    [
        (1.2, 0.05, 18, "decided"),
        (1.2, 0.001, 18, None),  # and goes on
        (1.2, 0.001, 9, "decided"),  # for there are no more
        (1.0, 0.05, 18, "narrow"),
        (1.0, 0.001, 18, None),  # hopeless, but not known as closely as was asked
        (1.0, 0.001, 9, "hopeless"),
    ],
)
def test_trials_go_on_until_a_difference_is_known(factor, within, most, ended):
    a = alike([100 + at / 10 for at in range(9)])
    b = alike([factor * (100 + (at * 4 % 9) / 10) for at in range(9)])
    seen = sequential.look(a, b)
    assert 0.001 < (seen.high_ratio - seen.low_ratio) / 2 < 0.05
    assert _clear(replace(TASK, within=within, most=most), seen, a, b) == ended


def test_a_verdict_stands_where_the_time_is_up_before_a_difference_is_known():
    def made(side, ms):
        whole = dict.fromkeys(("number", "steps", "samples_per_step"), 1)
        return Trial(side=side, status="ran", began="", seconds=1, step_ns=ms, fast_step_ns=ms, **whole)

    trials = [one for at in range(7) for one in (made("A", 1000 + 10 * at), made("B", 500 + at))]
    assert _over(replace(TASK, within=0.0001), trials, 0.0) is None
    assert _over(replace(TASK, within=0.0001), trials, 1800.0) == "decided"
    assert _over(TASK, trials, 1800.0) == "out of time"  # for it asked for no more than the first look
    assert _over(replace(TASK, within=0.0001), trials[:8], 1800.0) == "out of time"


def test_with_a_limit_nothing_is_hopeless():
    a = alike(float(2 * n) for n in range(1, 10))
    b = alike(float(2 * n) + 1 - 2 * (n % 2) for n in range(1, 10))
    seen = sequential.look(a, b)
    assert _clear(TASK, seen, a, b) == "hopeless"
    assert _clear(replace(TASK, limit=0.05), seen, a, b) is None


def test_the_first_look_counts_orders_by_hand():
    """Of the 924 orders of six and six, those in which B wins at least as many pairs, counted one by one."""
    a, b = [1.0, 2.0, 3.0, 4.0, 5.0, 7.5], [6.0, 7.0, 8.0, 9.0, 10.0, 11.0]
    wins = sum(one > other for one in b for other in a)
    tail = 0
    for places in combinations(range(12), 6):
        others = [place for place in range(12) if place not in places]
        tail += sum(one > other for one in places for other in others) >= wins
    seen = sequential.look(alike(a), alike(b))
    assert seen.p_value == seen.fast_p_value == pytest.approx(2 * tail / 924)
    assert bool(sequential.decides(seen)) == (2 * tail / 924 <= LEVEL_OF_A_TEST)


def alike(times):
    """Trials whose fast step is like their mean step."""
    return [Times(time, 0.9 * time) for time in times]


def test_it_looks_only_where_both_sides_have_as_many_trials():
    assert sequential.look(alike([1.0] * 5), alike([1.0] * 5)) is None
    assert sequential.look(alike([1.0] * 6), alike([1.0] * 7)) is None
    assert sequential.look(alike([1.0] * 7), alike([1.0] * 7)) is None
    assert [sequential.look(alike([1.0] * n), alike([2.0] * n)).runs for n in LOOKS] == list(LOOKS)


def test_the_mean_decides_alone_and_fast_steps_where_the_means_allow_it():
    random = np.random.default_rng(3)
    noise = random.normal(0, 1, 9).tolist()
    a = [Times(100 + 8 * one, 90 + one) for one in noise]
    slower = [Times(106 + 8 * one, 95 + one) for one in reversed(noise)]
    assert sequential.decides(sequential.look(a, slower)) == "fast"
    narrow = [Times(100 + at / 10, 90 + at) for at in range(9)]
    mean_alone = [Times(110 + at / 10, 89 + at) for at in range(9)]
    assert sequential.decides(sequential.look(narrow, mean_alone)) == "mean"
    bursts = [Times(100.4 + at / 10, 30 + at) for at in range(9)]  # fast steps far below what the means allow
    assert sequential.look(narrow, bursts).fast_p_value < LEVEL_OF_A_TEST
    assert sequential.decides(sequential.look(narrow, bursts)) == ""
    against = [Times(99 + 8 * one, 95 + one) for one in reversed(noise)]
    assert sequential.decides(sequential.look(a, against)) == ""


def test_the_interval_leaves_out_one_where_a_look_decides():
    a, b = [10.0, 11.0, 12.0, 13.0, 14.0, 15.0], [20.0, 21.0, 22.0, 23.0, 24.0, 25.0]
    seen = sequential.look(alike(a), alike(b))
    low, high = seen.low_ratio, seen.high_ratio
    assert sequential.decides(seen)
    assert 1 < low < 20 / 15 + 0.2
    assert high <= 25 / 10
    assert (seen.fast_low_ratio, seen.fast_high_ratio) == pytest.approx((low, high))


def test_what_slows_both_of_a_pair_does_not_hide_a_difference():
    """A machine twice as slow for every other pair: all trials of a side lie among the other's, the pairs apart."""
    machine = [1.0 + at % 2 for at in range(13)]
    a = alike([one * (100 + at / 10) for at, one in enumerate(machine)])
    b = alike([one * (104 + at * 5 % 13 / 10) for at, one in enumerate(machine)])
    assert sequential.decides(sequential.look(a[:9], b[:9])) == ""
    seen = sequential.look(a, b)
    assert sequential.decides(seen) == "mean"
    assert seen.p_value == seen.fast_p_value == 2 / 2**13  # B is the slower in each of them
    within = sorted(two.mean / one.mean for one, two in zip(a, b, strict=True))
    assert within[0] <= seen.low_ratio < seen.ratio < seen.high_ratio <= within[-1]
    other_pairs = sequential.look(a, [*b[1:], b[0]])
    assert sequential.decides(other_pairs) == ""


def test_it_is_hopeless_only_where_the_trials_lie_among_each_other():
    apart = alike([float(n) for n in range(1, 10)]), alike([float(n) + 4 for n in range(1, 10)])
    among = alike(float(2 * n) for n in range(1, 10)), alike(float(2 * n) + 1 - 2 * (n % 2) for n in range(1, 10))
    assert not sequential.hopeless(sequential.look(*apart), *apart)
    assert sequential.hopeless(sequential.look(*among), *among)
    by_mean = [Times(one.mean, other.fast) for one, other in zip(among[1], apart[1], strict=True)]
    assert not sequential.hopeless(sequential.look(among[0], by_mean), among[0], by_mean)
    few = among[0][:6], among[1][:6]
    assert not sequential.hopeless(sequential.look(*few), *few)

"""When to stop: tests are made after 6, 9, 13, 18, 25 and 35 trials a side, each at a level of 0.36 %.

Trials are made in pairs. After few of them all trials of a side are compared with all of the other, by the exact test
of `compare.verdict`: no signs of 6 differences are rare enough. From 13 on the trials of each pair are, by
that of `compare.signed_ranks`: what slows a machine for minutes slows both. In 72 comparisons of like and of
planted sides on one virtual machine the ratios within pairs varied by a quarter less, as squares, than trials of any
two pairs would have; on a busier one by a quarter to three quarters.

The test is made twice, on the mean step of each trial, which is what training pays, and on its fast step, than which a
tenth of its steps are faster: what else a machine does slows some steps more than others, so fast steps of like trials
lie closer together (by a quarter, in 240 s of like steps on a virtual machine).
The mean decides alone. The fast step decides only where the means allow the same ratio: they point the same way, and
their interval holds it. Steps that come in bursts, as behind a loader with several workers, have a fast step that says
nothing of the mean.

Looking several times at one level each would be wrong too often (Armitage, McPherson & Rowe 1969, J. R. Stat. Soc. A
132, 235), so each test has a level below that of the whole, the same for all (Pocock 1977, Biometrika 64, 191). Of
sides that do not differ 1.2 to 2.3 % are called better or worse at these six looks together, by how much the two tests
have to do with each other. A difference as large as the spread of the trials is found in 82 to 97 % of cases, one of
1.5 times that in more than 99 %; where a quarter of that spread (as squares) is common to the trials of a pair the
former in 91 to 99 %, where half is in 98 to 99 % (20,000 of each pair of sides, simulated; a test repeats it). Four
looks, to 18, found 46 to 69 %: on a virtual machine where trials spread 10 %, 4 of 12 steps made longer by a tenth were
left undecided by them.

Where a limit is set, trials go on until more than that is excluded, too: by an interval of the means whose upper end is
too low in 1.5 % of cases at one look. Of sides of which B takes the limit longer 5 % pass at these six together; of
sides that are closer by the spread of the trials 97 % (simulated like the others).
Nothing is hopeless then.

It is hopeless, from the second look on, where by both B was the slower in 42 to 58 % of what is compared. Stopping
there can only make it call fewer sides different.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Literal, NamedTuple

from dptune.compare import signed_ranks, verdict
from dptune.prove.result import PAIRED, Look

LOOKS = (6, 9, 13, 18, 25, 35)
LEVEL_OF_A_TEST = 0.0036
LEVELS_OF_TESTS = (LEVEL_OF_A_TEST, 0.0044)  # also those that proofs kept from before were made at
LEVEL = 0.023  # of all looks together, at most
LEVEL_OF_EXCLUDING = 0.015  # that more than a limit is excluded at one look, one-sided; 5 % of all together
_HOPELESS = (0.42, 0.58)


class Times(NamedTuple):
    """One trial: its mean and its fast step, in one unit."""

    mean: float
    fast: float


def look(a: Sequence[Times], b: Sequence[Times], level: float = LEVEL_OF_A_TEST) -> Look | None:
    """What is seen after as many trials on each side as a look takes; None between looks."""
    runs = min(len(a), len(b))
    if runs not in LOOKS or len(a) != len(b):
        return None
    means, fast = (
        ([trial.mean for trial in a], [trial.mean for trial in b]),
        ([trial.fast for trial in a], [trial.fast for trial in b]),
    )
    low, high = _interval(*means, level)
    fast_low, fast_high = _interval(*fast, level)
    return Look(
        runs=runs,
        level=level,
        p_value=_p_value(*means),
        ratio=times_as_long(*means),
        low_ratio=low,
        high_ratio=high,
        fast_p_value=_p_value(*fast),
        fast_ratio=times_as_long(*fast),
        fast_low_ratio=fast_low,
        fast_high_ratio=fast_high,
    )


def times_as_long(a: Sequence[float], b: Sequence[float]) -> float:
    """B / A: the median of what is compared (Hodges & Lehmann)."""
    return median(_ratios(a, b))


def decides(seen: Look) -> Literal["", "mean", "fast"]:
    """By which steps the sides differ."""
    if seen.p_value <= seen.level:
        return "mean"
    together = (seen.ratio - 1) * (seen.fast_ratio - 1) > 0 and seen.low_ratio <= seen.fast_ratio <= seen.high_ratio
    return "fast" if seen.fast_p_value <= seen.level and together else ""


def at_most(a: Sequence[Times], b: Sequence[Times]) -> float:
    """The ratio of mean steps of which more is excluded, from as many trials on each side as a look takes."""
    return _interval([trial.mean for trial in a], [trial.mean for trial in b], 2 * LEVEL_OF_EXCLUDING)[1]


def is_faster(a: Sequence[float], b: Sequence[float], level: float) -> bool:
    """Whether B is the faster by its mean steps, one-sided at half of a level; never with too few trials for it."""
    found = interval(a, b, level)
    return found is not None and found[1] < 1


def interval(a: Sequence[float], b: Sequence[float], level: float) -> tuple[float, float] | None:
    """Of B / A, at a level (two-sided); None with too few trials for it."""
    ratios, pairs = _ratios(a, b), len(a)
    paired = pairs >= PAIRED
    needed = signed_ranks.critical_wins(pairs, level) if paired else verdict.critical_wins(pairs, pairs, level)
    return None if needed is None else (ratios[-needed], ratios[needed - 1])


def share_faster(a: Sequence[float], b: Sequence[float]) -> float:
    """In which share of what is compared B is the faster."""
    ratios = _ratios(a, b)
    return sum(ratio < 1 for ratio in ratios) / len(ratios)


def hopeless(seen: Look, a: Sequence[Times], b: Sequence[Times]) -> bool:
    """Whether further trials would hardly tell the sides apart."""
    if seen.runs < LOOKS[1]:
        return False
    means = _ratios([trial.mean for trial in a], [trial.mean for trial in b])
    fast = _ratios([trial.fast for trial in a], [trial.fast for trial in b])
    slower = (sum(ratio > 1 for ratio in ratios) / len(ratios) for ratios in (means, fast))
    return all(_HOPELESS[0] <= share <= _HOPELESS[1] for share in slower)


def _ratios(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """B / A, ascending: of every two trials, or means over every two pairs of them."""
    return signed_ranks.means(a, b) if len(a) >= PAIRED else sorted(b_time / other for b_time in b for other in a)


def _p_value(a: Sequence[float], b: Sequence[float]) -> float:
    ratios, pairs = _ratios(a, b), len(a)
    wins = max(sum(ratio > 1 for ratio in ratios), sum(ratio < 1 for ratio in ratios))
    chance = signed_ranks.chance_of(pairs, wins) if pairs >= PAIRED else verdict.chance_of(pairs, pairs, wins)
    return min(1.0, 2 * chance)


def _interval(a: Sequence[float], b: Sequence[float], level: float) -> tuple[float, float]:
    """Of B / A, at a level (two-sided) that every look has trials enough for."""
    found = interval(a, b, level)
    assert found is not None
    return found

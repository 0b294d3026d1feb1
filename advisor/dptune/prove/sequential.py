"""When to stop: tests are made after 6, 9, 13 and 18 trials a side, each at a level of 0.44 %.

The test is the exact one of `measure.comparing.verdict`. It is made twice, on the mean step of each trial, which is
what training pays, and on its fast step, than which a tenth of its steps are faster: what else a machine does slows
some steps more than others, so fast steps of like trials lie closer together (by a quarter, in 240 s of like steps on a
virtual machine).
The mean decides alone. The fast step decides only where the means allow the same ratio: they point the same way, and
their interval holds it. Steps that come in bursts, as behind a loader with several workers, have a fast step that says
nothing of the mean.

Looking several times at one level each would be wrong too often (Armitage, McPherson & Rowe 1969, J. R. Stat. Soc. A
132, 235), so each test has a level below that of the whole, the same for all (Pocock 1977, Biometrika 64, 191). Of
sides that do not differ 1.2 to 2.6 % are called better or worse at these four looks together, by how much the two tests
have to do with each other. A difference as large as the spread of the trials is found in 51 to 75 % of cases, one of
1.5 times that in 92 to 99 %, of twice that in more than 99 % (20,000 of each pair of sides, simulated; a test repeats
it).

Where a limit is set, trials go on until more than that is excluded, too: by an interval of the means whose upper end is
too low in 2.1 % of cases at one look. Of sides of which B takes the limit longer 5 % pass at these four together; of
sides that are closer by the spread of the trials 82 %, by 1.5 times that 99 % (simulated like the others). Nothing is
hopeless then.

It is hopeless, from the second look on, where by both B was the slower in 42 to 58 % of all pairs of trials. Stopping
there can only make it call fewer sides different.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Literal, NamedTuple

from dptune.measure.comparing.verdict import chance_of, critical_wins
from dptune.proof import Look

LOOKS = (6, 9, 13, 18)
LEVEL_OF_A_TEST = 0.0044
LEVEL = 0.026  # of all looks together, at most
LEVEL_OF_EXCLUDING = 0.021  # that more than a limit is excluded at one look, one-sided; 5 % of all together
_HOPELESS = (0.42, 0.58)


class Times(NamedTuple):
    """One trial: its mean and its fast step, in one unit."""

    mean: float
    fast: float


def look(a: Sequence[Times], b: Sequence[Times]) -> Look | None:
    """What is seen after as many trials on each side as a look takes; None between looks."""
    runs = min(len(a), len(b))
    if runs not in LOOKS or len(a) != len(b):
        return None
    means, fast = ([one.mean for one in a], [one.mean for one in b]), ([one.fast for one in a], [one.fast for one in b])
    low, high = _interval(*means, LEVEL_OF_A_TEST)
    fast_low, fast_high = _interval(*fast, LEVEL_OF_A_TEST)
    return Look(
        runs=runs,
        level=LEVEL_OF_A_TEST,
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
    """B / A: the median over all pairs of trials (Hodges & Lehmann)."""
    return median(one / other for one in b for other in a)


def decides(seen: Look) -> Literal["", "mean", "fast"]:
    """By which steps the sides differ."""
    if seen.p_value <= seen.level:
        return "mean"
    together = (seen.ratio - 1) * (seen.fast_ratio - 1) > 0 and seen.low_ratio <= seen.fast_ratio <= seen.high_ratio
    return "fast" if seen.fast_p_value <= seen.level and together else ""


def at_most(a: Sequence[Times], b: Sequence[Times]) -> float:
    """The ratio of mean steps of which more is excluded, from as many trials on each side as a look takes."""
    return _interval([one.mean for one in a], [one.mean for one in b], 2 * LEVEL_OF_EXCLUDING)[1]


def hopeless(seen: Look, a: Sequence[Times], b: Sequence[Times]) -> bool:
    """Whether further trials would hardly tell the sides apart."""
    if seen.runs < LOOKS[1]:
        return False
    pairs = len(a) * len(b)
    means = sum(one.mean > other.mean for one in b for other in a) / pairs
    fast = sum(one.fast > other.fast for one in b for other in a) / pairs
    return all(_HOPELESS[0] <= slower <= _HOPELESS[1] for slower in (means, fast))


def _p_value(a: Sequence[float], b: Sequence[float]) -> float:
    slower = sum(one > other for one in b for other in a)
    quicker = sum(one < other for one in b for other in a)
    return min(1.0, 2 * chance_of(len(a), len(b), max(slower, quicker)))


def _interval(a: Sequence[float], b: Sequence[float], level: float) -> tuple[float, float]:
    """Of B / A, at a level (two-sided) that every look has trials enough for."""
    needed = critical_wins(len(a), len(b), level)
    assert needed is not None
    ratios = sorted(one / other for one in b for other in a)
    return ratios[-needed], ratios[needed - 1]

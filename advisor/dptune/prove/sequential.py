"""When to stop: tests are made after 6, 9, 13 and 18 trials a side, each time at a level of 0.44 %.

The test is the exact one of `measure.comparing.verdict`. It is made twice, on the median step of each trial and on its
fast step, than which a tenth of its steps are faster: what else a machine does slows some steps more than others, so
fast steps of like trials lie closer together (on the machines of the error rates by a third), but what slows only some
steps of B shows in the median alone. One of them decides where the other does not contradict it.

Looking several times at one level each would be wrong too often (Armitage, McPherson & Rowe 1969, J. R. Stat. Soc. A
132, 235), so each test has a level below that of the whole, the same for all (Pocock 1977, Biometrika 64, 191). Of
sides that do not differ 1.2 to 2.3 % are called better or worse at these four looks together, by how much the two
tests have to do with each other. A difference as large as the spread of the trials is found in 51 to 75 % of cases, one
of 1.5 times that in 92 to 99 %, of twice that in more than 99 % (20,000 of each pair of sides, simulated; a test
repeats it).

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
LEVEL = 0.023  # of all looks together, at most
_HOPELESS = (0.42, 0.58)


class Times(NamedTuple):
    """One trial: its median and its fast step, in one unit."""

    median: float
    fast: float


def look(a: Sequence[Times], b: Sequence[Times]) -> Look | None:
    """What is seen after as many trials on each side as a look takes; None between looks."""
    runs = min(len(a), len(b))
    if runs not in LOOKS or len(a) != len(b):
        return None
    p_value, ratio = _test([one.median for one in a], [one.median for one in b])
    fast_p_value, fast_ratio = _test([one.fast for one in a], [one.fast for one in b])
    return Look(
        runs=runs,
        level=LEVEL_OF_A_TEST,
        p_value=p_value,
        ratio=ratio,
        fast_p_value=fast_p_value,
        fast_ratio=fast_ratio,
    )


def _test(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    ratios = [one / other for one in b for other in a]
    wins = max(sum(ratio > 1 for ratio in ratios), sum(ratio < 1 for ratio in ratios))
    return min(1.0, 2 * chance_of(len(a), len(b), wins)), median(ratios)


def decides(seen: Look) -> Literal["", "median", "fast"]:
    """By which steps the sides differ."""
    if (seen.ratio - 1) * (seen.fast_ratio - 1) < 0:
        return ""
    if min(seen.p_value, seen.fast_p_value) > seen.level:
        return ""
    return "median" if seen.p_value <= seen.fast_p_value else "fast"


def hopeless(seen: Look, a: Sequence[Times], b: Sequence[Times]) -> bool:
    """Whether further trials would hardly tell the sides apart."""
    if seen.runs < LOOKS[1]:
        return False
    pairs = len(a) * len(b)
    medians = sum(one.median > other.median for one in b for other in a) / pairs
    fast = sum(one.fast > other.fast for one in b for other in a) / pairs
    return all(_HOPELESS[0] <= slower <= _HOPELESS[1] for slower in (medians, fast))


def interval(a: Sequence[float], b: Sequence[float]) -> tuple[float, float] | None:
    """Of B / A, at the level of a test; None where so few trials have none."""
    needed = critical_wins(len(a), len(b), LEVEL_OF_A_TEST)
    if needed is None:
        return None
    ratios = sorted(one / other for one in b for other in a)
    return ratios[-needed], ratios[needed - 1]

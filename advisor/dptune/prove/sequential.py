"""When to stop: the test is made after 6, 9, 13 and 18 trials a side, each time at a level of 0.8 %.

The test is the exact one of `measure.comparing.verdict`, on one time per trial. Looking several times at one level each
would be wrong too often (Armitage, McPherson & Rowe 1969, J. R. Stat. Soc. A 132, 235), so each look has a level below
that of the whole, the same for all (Pocock 1977, Biometrika 64, 191). Of sides that do not differ 2.1 % are called
better or worse at these four looks together (simulated: 200,000 of each pair of sides; a test repeats it). A
difference as large as the spread of the trials is found in 59 % of cases, one of 1.5 times that in 94 %, of twice that
in 99 %.

It is hopeless, from the second look on, where B was the slower in 42 to 58 % of all pairs of trials: with a difference
of 1.5 spreads that happens in 1 % of cases. Stopping there can only make it call fewer sides different.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from dptune.measure.comparing.verdict import chance_of, critical_wins
from dptune.proof import Look

LOOKS = (6, 9, 13, 18)
LEVEL_OF_A_LOOK = 0.008
LEVEL = 0.021  # of all looks together
_HOPELESS = (0.42, 0.58)


def look(a: Sequence[float], b: Sequence[float]) -> Look | None:
    """What is seen after as many trials on each side as a look takes; None between looks."""
    runs = min(len(a), len(b))
    if runs not in LOOKS or len(a) != len(b):
        return None
    ratios = [one / other for one in b for other in a]
    wins = max(sum(ratio > 1 for ratio in ratios), sum(ratio < 1 for ratio in ratios))
    p_value = min(1.0, 2 * chance_of(runs, runs, wins))
    return Look(runs=runs, p_value=p_value, level=LEVEL_OF_A_LOOK, ratio=median(ratios))


def decides(seen: Look) -> bool:
    """Whether the sides differ."""
    return seen.p_value <= seen.level


def hopeless(seen: Look, a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether further trials would hardly tell the sides apart."""
    slower = sum(one > other for one in b for other in a) / (len(a) * len(b))
    return seen.runs >= LOOKS[1] and _HOPELESS[0] <= slower <= _HOPELESS[1]


def interval(a: Sequence[float], b: Sequence[float]) -> tuple[float, float] | None:
    """Of B / A, at the level of a look; None where so few trials have none."""
    needed = critical_wins(len(a), len(b), LEVEL_OF_A_LOOK)
    if needed is None:
        return None
    ratios = sorted(one / other for one in b for other in a)
    return ratios[-needed], ratios[needed - 1]

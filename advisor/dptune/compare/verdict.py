"""Whether B differs from A: a test on one time per run, because steps of one process are not independent.

The test is Wilcoxon and Mann-Whitney's, two-sided and exact (Mann & Whitney 1947, Ann. Math. Stat. 18, 50). Run medians
on a shared machine are skewed, with outliers, and there are few of them: a test on ranks asks for no distribution, and
an outlier cannot hide a difference as it does from Welch's t. What it asks for is that runs which do not differ could
have come in any order, so runs of A and B belong in turn and shuffled. Its price: below four runs a side no order is
rare enough to decide (2 of 20 orders of 3 and 3 are the extreme ones; 2 of 70 of 4 and 4).

The interval of the ratio is the same test inverted (Hodges & Lehmann 1963, Ann. Math. Stat. 34, 598; Lehmann 1963, 34,
1507): between two of the sorted ratios of every run of B to every run of A. So it leaves out 1 exactly where the test
decides. That the process is the unit: Kalibera & Jones 2013, Rigorous Benchmarking in Reasonable Time, ISMM.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, count, takewhile
from math import comb
from statistics import median

from dptune.compare.result import Outcome, Verdict

LEVEL = 0.05
LEAST_RUNS = 4  # on each side: with fewer no order of as many runs is rare enough


def decide(a_ns: Sequence[float], b_ns: Sequence[float]) -> Verdict:
    """The verdict on B against A, from one time per run (positive, in any unit)."""
    ratios = sorted(b / a for a in a_ns for b in b_ns)
    needed = critical_wins(len(a_ns), len(b_ns))
    if min(len(a_ns), len(b_ns)) < LEAST_RUNS or needed is None:
        return undecided(_too_few(len(a_ns), len(b_ns)), ratio=median(ratios))
    low, high = ratios[-needed], ratios[needed - 1]
    outcome: Outcome = "worse" if low > 1 else "better" if high < 1 else "inconclusive"
    wins = max(sum(ratio > 1 for ratio in ratios), sum(ratio < 1 for ratio in ratios))
    p_value = min(1.0, 2 * chance_of(len(a_ns), len(b_ns), wins))
    return Verdict(
        outcome=outcome,
        reason=_reason(outcome, p_value),
        level=LEVEL,
        runs_needed=runs_needed(),
        p_value=p_value,
        ratio=median(ratios),
        low_ratio=low,
        high_ratio=high,
    )


def undecided(why: str, outcome: Outcome = "inconclusive", ratio: float | None = None) -> Verdict:
    """A verdict without a test, for one reason (a sentence without its full stop)."""
    return Verdict.only(why, outcome=outcome, reason=why, level=LEVEL, runs_needed=runs_needed(), ratio=ratio)


def runs_needed(level: float = LEVEL) -> int:
    """The fewest runs on each side with which the test can decide."""
    return next(n for n in count(LEAST_RUNS) if critical_wins(n, n, level) is not None)


def critical_wins(a: int, b: int, level: float = LEVEL) -> int | None:
    """In how many pairs of runs one side must be the slower for the test to decide; None where even all do not do."""
    at_most = level / 2 * comb(a + b, a)
    tails = accumulate(reversed(_orders(a, b)))  # orders with all pairs won, all but one or more, ...
    enough = sum(1 for _ in takewhile(lambda orders: orders <= at_most, tails))
    return a * b - enough + 1 if enough else None


def chance_of(a: int, b: int, wins: int) -> float:
    """How often chance alone lets one given side be the slower in `wins` pairs or more.

    Equal times count for neither side, which can only make it larger than it is.
    """
    return sum(_orders(a, b)[wins:]) / comb(a + b, a)


def _orders(a: int, b: int) -> list[int]:
    """Of the orders of a + b different times, in how many side B is the slower in 0, 1, ..., a * b of the pairs.

    The coefficients of the Gaussian binomial (a + b choose a): the product over i = 1..a of (1 - q^(b+i)) / (1 - q^i).
    """
    orders = [1] + [0] * (a * b)
    for i in range(1, a + 1):
        for wins in range(a * b, b + i - 1, -1):
            orders[wins] -= orders[wins - b - i]
        for wins in range(i, a * b + 1):
            orders[wins] += orders[wins - i]
    return orders


def _reason(outcome: Outcome, p_value: float) -> str:
    chance = f"p = {p_value:.2g}"
    if outcome == "inconclusive":
        return f"A and B are not significantly different ({chance}, alpha = {LEVEL:g})"
    return f"A and B differ significantly ({chance})"


def _too_few(a: int, b: int) -> str:
    fewest = runs_needed()
    if a == b == 1:
        return f"one run per side cannot rule out noise: a verdict needs at least {fewest} per side"
    return f"{a} and {b} runs are too few to rule out noise: a verdict needs at least {fewest} per side"

"""Whether B differs from A where trials of both were made in pairs, one soon after the other, in either order.

A machine that becomes slower for a while is so for both of a pair. What is left of their ratio is the difference, and
noise that is shorter than a pair. The test is Wilcoxon's of signed ranks, two-sided and exact (Wilcoxon 1945,
Biometrics Bull. 1, 80), on the logarithms of the ratios: it asks for nothing but that either of a pair that does not
differ could have come first, which shuffling sees to. Its statistic is how many of the means of two ratios (of each
with each, and with itself) lie above 1 (Tukey), and the interval of the ratio is between two of those means, sorted
(Hodges & Lehmann 1963, Ann. Math. Stat. 34, 598): so it leaves out 1 exactly where the test decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, combinations_with_replacement, takewhile
from math import sqrt


def means(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """The geometric means of any two of the ratios b / a of as many pairs (positive, in any unit), ascending."""
    ratios = [after / before for before, after in zip(a, b, strict=True)]
    return sorted(sqrt(ratio * other) for ratio, other in combinations_with_replacement(ratios, 2))


def critical_wins(pairs: int, level: float) -> int | None:
    """How many means must lie on one side of 1 for the test to decide; None where even all do not do."""
    signs = _signs(pairs)
    at_most = level / 2 * sum(signs)
    tails = accumulate(reversed(signs))  # signs with which all means lie above 1, all but one or more, ...
    enough = sum(1 for _ in takewhile(lambda signs: signs <= at_most, tails))
    return len(signs) - enough if enough else None


def chance_of(pairs: int, wins: int) -> float:
    """How often chance alone puts `wins` means or more on one given side of 1.

    A mean of just 1 counts for neither side, which can only make it larger than it is.
    """
    signs = _signs(pairs)
    return sum(signs[wins:]) / sum(signs)


def _signs(pairs: int) -> list[int]:
    """Of the signs of as many different differences, with how many of them 0, 1, ... means lie above 1.

    The coefficients of the product over i = 1..pairs of 1 + q^i.
    """
    signs = [1] + [0] * (pairs * (pairs + 1) // 2)
    for rank in range(1, pairs + 1):
        for wins in range(len(signs) - 1, rank - 1, -1):
            signs[wins] += signs[wins - rank]
    return signs

"""Whether a change alters what is learned: the losses of the first backward passes, of A's trials and of B's.

Every trial is held against the median of A's, pass by pass, relative to the loss of that pass; how far the repeats of A
lie apart is the least that is allowed. The data are the same only where the script seeds its generators or leaves them
as the trials seed them: where repeats of A differ as much as other data would, nothing is said. One repeat of A that
differs so, of four or more, is an odd one: then one of B may differ as well, but not more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Literal

from dptune.prove.result import Learning, Trial

# Relative to the loss: what reordered float32 sums come to over some tens of steps, and what 16 bits may.
ALLOWED = {"same": 1e-3, "changes": 5e-2, "other draws": 1e-3}
_NOT_REPEATABLE = 2e-2  # repeats of A that lie farther apart saw other data, or other dropout
_LEAST_LOSS = 0.05  # of the largest: a loss below it is not looked at more closely than one of that
_SHORT = 0.5  # of the longest: a trial of fewer passes says nothing about the others
_ODD_OF = 4  # repeats of A of which one may be odd


def learning(trials: Sequence[Trial], numerics: Literal["same", "changes", "other draws"]) -> Learning:
    """B's first losses against A's."""
    ran = [trial for trial in trials if trial.status == "ran"]
    if {trial.side for trial in ran} != {"A", "B"}:
        return _unknown("no trial of one side finished, so its losses are unknown")
    a, b = ([trial.losses for trial in ran if trial.side == side and trial.losses] for side in ("A", "B"))
    if not a or not b:
        return _unknown("no loss was seen: the script does not call backward on a scalar")
    longest = max(map(len, [*a, *b]))
    a, b = ([losses for losses in side if len(losses) >= _SHORT * longest] for side in (a, b))
    if not a or not b:
        return _unknown("the trials of one side are much shorter, so few losses can be compared")
    if len(a) < 2:
        return _unknown("one trial of A does not show how much its repeats differ")
    passes = min(map(len, [*a, *b]))
    finite = [losses for losses in a if all(map(math.isfinite, losses[:passes]))]
    if 2 * len(finite) <= len(a):
        return _unknown("a loss of A is NaN or infinite")
    middle = [median(losses[at] for losses in finite) for at in range(passes)]
    of_a, of_b = ([_apart(losses, middle) for losses in side] for side in (a, b))
    odd = sum(distance > _NOT_REPEATABLE for distance in of_a)
    if odd > 1 or (odd and len(a) < _ODD_OF):
        differ = max(distance for distance in of_a if math.isfinite(distance))
        return _unknown(
            f"repeats of A differ by {differ:.1%} themselves: the script uses different data each time (it sets no "
            f"seed)"
        )
    spread = max(distance for distance in of_a if distance <= _NOT_REPEATABLE)
    allowed = max(ALLOWED[numerics], 3 * spread)
    return _judged(of_b, spread, allowed, odd, passes, numerics)


def _judged(of_b: Sequence[float], spread: float, allowed: float, odd: int, passes: int, numerics: str) -> Learning:
    """By how far each trial of B is from A, with as many odd ones of A."""
    difference, beyond = max(of_b), sum(distance > allowed for distance in of_b)
    figures = {"difference": difference, "spread": spread, "allowed": allowed}
    first = f"over the first {passes} backward passes the loss of B"
    words = f"{first} differs from A's by up to {difference:.2g} (relative); tolerance {allowed:.2g}"
    if not difference:
        return _decided("alike", f"{first} equals that of A", figures)
    if not beyond:
        return _decided("alike", words, figures)
    broken = sum(not math.isfinite(distance) for distance in of_b)
    if broken > odd:
        of = "" if broken == len(of_b) else f" in {broken} of {len(of_b)} trials"
        return _decided("other", f"a loss of B is NaN or infinite{of}, and none of A's", figures)
    if numerics == "other draws":
        return _unknown("with the change, passes see different samples or random numbers, so losses cannot be compared")
    if beyond <= odd:
        return _unknown("one repeat of A and one of B used different data, or gave different results")
    of = "" if beyond == len(of_b) else f" in {beyond} of {len(of_b)} trials"
    return _decided("other", f"{words}: B's training results differ{of}", figures)


def _apart(losses: Sequence[float], middle: Sequence[float]) -> float:
    """The largest distance over the passes, relative to the loss of the pass; infinite where one is no number."""
    least = _LEAST_LOSS * max(map(abs, middle)) or 1.0
    apart = (abs(loss - other) / max(abs(other), least) for loss, other in zip(losses, middle, strict=False))
    return max(each if math.isfinite(each) else math.inf for each in apart)


def _decided(outcome: Literal["alike", "other"], reason: str, figures: dict[str, float]) -> Learning:
    known = {name: value for name, value in figures.items() if math.isfinite(value)}
    return Learning.only("it is no number", outcome=outcome, reason=reason, **known)


def _unknown(why: str) -> Learning:
    return Learning.only(why, outcome="not known", reason=why)

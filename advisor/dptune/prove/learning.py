"""Whether a change alters what is learned: the losses of the first backward passes, of A's trials and of B's.

Each side is the median over its trials, pass by pass; how far the repeats of A lie apart is the least that is allowed.
The data are the same only where the script seeds its generators or leaves them as the trials seed them: where repeats
of A differ as much as other data would, nothing is said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Literal

from dptune.proof import Learning, Trial

# Relative to the loss: what reordered float32 sums come to over some tens of steps, and what 16 bits may.
ALLOWED = {"same": 1e-3, "changes": 5e-2, "other draws": 1e-3}
_NOT_REPEATABLE = 2e-2  # repeats of A that lie farther apart saw other data, or other dropout


def learning(trials: Sequence[Trial], numerics: Literal["same", "changes", "other draws"]) -> Learning:
    """B's first losses against A's."""
    ran = [trial for trial in trials if trial.status == "ran"]
    if {trial.side for trial in ran} != {"A", "B"}:
        return _unknown("no trial of one side ran to the end, so its losses are not known")
    a, b = ([trial.losses for trial in ran if trial.side == side and trial.losses] for side in ("A", "B"))
    if not a or not b:
        return _unknown("no loss was seen: the script calls backward on something else than one number")
    passes = min(map(len, [*a, *b]))
    if not all(math.isfinite(loss) for one in a for loss in one[:passes]):
        return _unknown("a loss of A is not a number")
    if not all(math.isfinite(loss) for one in b for loss in one[:passes]):
        return _told("other", "a loss of B is not a number, and none of A's is that")
    if len(a) < 2:
        return _unknown("one trial of A does not show how far its own repeats lie apart")
    middle, other = ([median(one[at] for one in side) for at in range(passes)] for side in (a, b))
    largest = max(map(abs, middle)) or 1.0
    spread, difference = max(_apart(one, middle) for one in a) / largest, _apart(other, middle) / largest
    if spread > _NOT_REPEATABLE:
        return _unknown(
            f"repeats of A differ by {spread:.1%} themselves: the script sees other data each time (it sets no seed)"
        )
    allowed = max(ALLOWED[numerics], 3 * spread)
    found = {"difference": difference, "spread": spread, "allowed": allowed}
    words = f"over the first {passes} backward passes the loss of B is within {difference:.2g} of A's, relative to it"
    if difference <= allowed:
        return _told("alike", f"{words}; up to {allowed:.2g} is allowed", **found)
    if numerics == "other draws":
        return _unknown("the change shows each pass other samples or random numbers, so losses cannot be compared")
    return _told("other", f"{words}, and {allowed:.2g} is allowed: B learns something else", **found)


def _apart(losses: Sequence[float], middle: Sequence[float]) -> float:
    return max(abs(one - other) for one, other in zip(losses, middle, strict=False))


def _told(outcome: Literal["alike", "other"], reason: str, **figures: float) -> Learning:
    return Learning.only(reason, outcome=outcome, reason=reason, **figures)


def _unknown(why: str) -> Learning:
    return Learning.only(why, outcome="not known", reason=why)

"""What advice does together: predicted as one set of changes, never added up.

Advice that changes what is learned is weighed on top of the advice that does not: a larger batch hides the cost of
small buckets, and is not needed for it once those are mended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dptune.advice import Advice, Change, Evidence, Skipped, Together
from dptune.advise.ranking import ranked
from dptune.measured import Missing
from dptune.rule import RunView

WORTH_ON_TOP = 0.05  # of the time per sample that the other advice leaves: what a warning is
FIRST = 3
_NOTHING = 0.005  # rounds to 0 %


def weighed(advice: Sequence[Advice], run: RunView) -> tuple[list[Advice], list[Skipped]]:
    """The advice without what is not worth it on top of what leaves learning as it is; and that, as skipped."""
    safe = [
        recommendation
        for recommendation in advice
        if _is_predicted(recommendation) and recommendation.numerics == "same"
    ]
    kept: list[Advice] = []
    dropped: list[Skipped] = []
    for recommendation in advice:
        left = (
            _left(recommendation, safe, run)
            if safe and _is_predicted(recommendation) and recommendation.numerics == "changes"
            else None
        )
        if left is None:
            kept.append(recommendation)
        elif left.share < WORTH_ON_TOP:
            others = " and ".join(other.rule for other in safe)
            dropped.append(Skipped.giving_way(recommendation.rule, f"it would save {left} on top of {others}"))
        elif left.in_range:
            kept.append(recommendation)
        else:
            label = f"saved on top of {' and '.join(other.rule for other in safe)}"
            on_top = Evidence(label=label, value=left.share, unit="of the time per sample")
            kept.append(recommendation.model_copy(update={"evidence": [*recommendation.evidence, on_top]}))
    return ranked(kept), dropped


def together(advice: Sequence[Advice], run: RunView) -> list[Together]:
    """What all advice that leaves learning as it is saves together, and the first three, where these are others.

    A set whose predicted interval includes zero is left out.
    """
    predicted = [recommendation for recommendation in advice if _is_predicted(recommendation)]
    sets = [[recommendation for recommendation in predicted if recommendation.numerics == "same"], predicted[:FIRST]]
    found: list[Together] = []
    for chosen in sets:
        rules = [recommendation.rule for recommendation in chosen]
        if len(chosen) < 2 or any(set(rules) == set(earlier_set.rules) for earlier_set in found):
            continue
        try:
            saves = run.predict(_changes(chosen))
        except Missing:
            continue
        if saves.may_be_nothing:
            continue
        learning = "same" if all(recommendation.numerics == "same" for recommendation in chosen) else "changes"
        found.append(Together(rules=rules, numerics=learning, saves=saves))
    return found


def _is_predicted(advice: Advice) -> bool:
    return (
        advice.kind == "time" and advice.saves is not None and advice.saves.basis == "replayed" and bool(advice.changes)
    )


def _changes(advice: Sequence[Advice]) -> list[Change]:
    return [change for recommendation in advice for change in recommendation.changes]


class _Left(NamedTuple):
    """What a change saves of the time per sample that others leave. `in_range`: from a predicted range, so that no
    sentence states it.
    """

    share: float
    in_range: bool

    def __str__(self) -> str:
        if self.share < _NOTHING:
            return "nothing"
        return "little" if self.in_range else f"only {100 * self.share:.0f} %"


def _left(advice: Advice, safe: Sequence[Advice], run: RunView) -> _Left | None:
    """What it saves of the time per sample that the others leave; None where it is not predicted."""
    try:
        predicted = [run.predict(changes) for changes in (_changes(safe), _changes([*safe, advice]))]
    except Missing:
        return None
    before, after = (1 - (saves.central_share or 0.0) for saves in predicted)
    return _Left(1 - after / before if before else 0.0, any(saves.is_range for saves in predicted))

"""What advice does together: predicted as one set of changes, never added up.

Advice that changes what is learned is weighed on top of the advice that does not: a larger batch hides the cost of
small buckets, and is not needed for it once those are mended.
"""

from __future__ import annotations

from collections.abc import Sequence

from dptune.advice import Advice, Change, Evidence, Saving, Skipped, Together
from dptune.advise.ranking import ranked
from dptune.measured import Missing
from dptune.rule import RunView

WORTH_ON_TOP = 0.05  # of the time per sample that the other advice leaves: what a warning is
FIRST = 3


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
        elif left < WORTH_ON_TOP:
            others = " and ".join(other.rule for other in safe)
            more = f"only {100 * left:.0f} %" if left >= 0.005 else "nothing"
            reason = f"it would save {more} on top of {others}"
            dropped.append(Skipped.giving_way(recommendation.rule, reason))
        else:
            label = f"saved on top of {' and '.join(other.rule for other in safe)}"
            on_top = Evidence(label=label, value=left, unit="of the time per sample")
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


def _left(advice: Advice, safe: Sequence[Advice], run: RunView) -> float | None:
    """What it saves of the time per sample that the others leave; None where it is not predicted."""
    try:
        before, after = (_remains(run.predict(changes)) for changes in (_changes(safe), _changes([*safe, advice])))
    except Missing:
        return None
    return 1 - after / before if before else 0.0


def _remains(saves: Saving) -> float:
    return 1 - (saves.predicted_share or 0.0)

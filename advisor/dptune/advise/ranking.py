"""The order of advice, one card for one mechanism, and one voice on one setting.

Low confidence comes after everything else. Kinds are ranked within themselves: by impact, which follows from the
expected gain and the confidence; then numerics unchanged before other rounding, and that before other batches; then by
the expected gain. Risks come first where one of them is certain to train another model than intended, where one that
changes results has medium or high impact and no saving has, or where one is certain while the first saving is an upper
bound above half of the step without high confidence, which may come to nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dptune.advice import CONFIDENCES, IMPACTS, Advice, Change, Kind, Skipped

KINDS: tuple[Kind, ...] = ("time", "risk", "convergence")
_RESULTS_FIRST: tuple[Kind, ...] = ("risk", "time", "convergence")


def ranked(advice: Iterable[Advice]) -> list[Advice]:
    """Time first, then risk, then convergence; the most worth doing first in each. The same order on every run.

    Low confidence comes last, and risks first where one threatens the results of the training.
    """
    found = list(advice)
    kinds = _RESULTS_FIRST if _results_come_first(found) else KINDS
    return sorted(found, key=lambda candidate: (_is_unsure(candidate), kinds.index(candidate.kind), *_worth(candidate)))


def _results_come_first(found: Sequence[Advice]) -> bool:
    """Whether a risk is certain, and either severe or surer than the saving that would be named first."""
    if any(recommendation.threatens_results for recommendation in found):
        return True
    savings = [saving for saving in found if saving.kind == "time" and not _is_unsure(saving)]
    if all(saving.impact == "low" for saving in savings) and any(
        (risk.kind, risk.numerics) == ("risk", "changes") and risk.impact != "low" and not _is_unsure(risk)
        for risk in found
    ):
        return True
    certain = any(
        (risk.kind, risk.confidence, risk.numerics) == ("risk", "high", "changes") and risk.impact != "low"
        for risk in found
    )
    best = min(savings, key=_worth, default=None)
    if not certain or best is None or best.confidence == "high":
        return False
    return best.saves is not None and best.saves.large_unknown


def merged(advice: Iterable[Advice]) -> list[Advice]:
    """One card per fingerprint: the best ranked, with the changes and the evidence of the others added."""
    cards: dict[str, Advice] = {}
    for recommendation in ranked(advice):
        first = cards.get(recommendation.fingerprint)
        cards[recommendation.fingerprint] = recommendation if first is None else _joined(first, recommendation)
    return ranked(cards.values())


def settled(advice: Iterable[Advice]) -> tuple[list[Advice], list[Skipped]]:
    """Of advice that wants one setting at different values the surest, then the best ranked; the rest, as skipped.

    Low confidence is least sure. A bound is less sure than what is predicted or was proven: it may come to nothing.
    """
    kept: list[Advice] = []
    dropped: list[Skipped] = []
    for recommendation in sorted(ranked(advice), key=lambda candidate: (_is_unsure(candidate), _is_bound(candidate))):
        rival = next(
            ((other, c) for other in kept for c in recommendation.changes if _contradicts(c, other.changes)), None
        )
        if rival is None:
            kept.append(recommendation)
        else:
            other, change = rival
            reason = (
                f"superseded by {other.rule}, which sets {change.knob} differently, with higher confidence or a "
                "larger saving"
            )
            dropped.append(Skipped.giving_way(recommendation.rule, reason))
    return ranked(kept), dropped


def _is_unsure(advice: Advice) -> bool:
    return advice.confidence == "low"


def _is_bound(advice: Advice) -> bool:
    return advice.kind == "time" and (advice.saves is None or advice.saves.basis == "bound")


def _worth(advice: Advice) -> tuple[bool, int, int, float, int, str]:
    expected = advice.saves.expected_share if advice.saves and advice.kind == "time" else 0.0
    impact, confidence = IMPACTS.index(advice.impact), CONFIDENCES.index(advice.confidence)
    return (not advice.threatens_results, -impact, _learning(advice), -expected, -confidence, advice.fingerprint)


def _learning(advice: Advice) -> int:
    """How much it changes what is learned: not, by rounding, or by the samples that a step learns of."""
    if advice.numerics == "same":
        return 0
    return 1 if advice.saves is None or advice.saves.samples_times == 1 else 2


def _joined(first: Advice, other: Advice) -> Advice:
    changes = [*first.changes, *(c for c in other.changes if c not in first.changes)]
    evidence = [*first.evidence, *(e for e in other.evidence if e not in first.evidence)]
    worst = max(first.impact, other.impact, key=IMPACTS.index)
    return first.model_copy(update={"changes": changes, "evidence": evidence, "impact": worst})


def _contradicts(change: Change, others: Iterable[Change]) -> bool:
    """Whether another change sets the same knob at the same place (or at no known place) to something else."""
    return any(
        other.knob == change.knob
        and other.then != change.then
        and (other.at == change.at or other.at is None or change.at is None)
        for other in others
    )

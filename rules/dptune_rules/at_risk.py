"""What rules return where training results are at risk: the script is wrong, and no setting corrects it."""

from __future__ import annotations

from collections.abc import Iterable

from dptune.advice import Advice, Confidence, Evidence, Impact
from dptune.rule import Rule


def results_at_risk(
    rule: Rule,
    *,
    title: str,
    why: str,
    evidence: Iterable[Evidence],
    remedy: str,
    subject: str,
    confidence: Confidence = "high",
    impact: Impact = "high",
    watch: str = "",
) -> Advice:
    """The advice of a rule about results; `subject` is what the fingerprint names.

    `remedy` is what to change in the script, `watch` what the change does beside that.
    """
    return Advice(
        rule=rule.code,
        slug=rule.name,
        kind=rule.kind,
        impact=impact,
        title=title,
        why=why,
        changes=[],
        remedy=remedy,
        confidence=confidence,
        evidence=list(evidence),
        numerics="changes",
        watch=watch,
        fingerprint=f"{rule.code}:{subject}",
    )

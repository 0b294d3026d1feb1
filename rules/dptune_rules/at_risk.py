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
    watch: str,
    subject: str,
    confidence: Confidence = "high",
    impact: Impact = "high",
) -> Advice:
    """The advice of a rule about results. `watch` is what to change, `subject` what the fingerprint names."""
    return Advice(
        rule=rule.code,
        slug=rule.name,
        kind=rule.kind,
        impact=impact,
        title=title,
        why=why,
        changes=[],
        confidence=confidence,
        evidence=list(evidence),
        numerics="changes",
        watch=watch,
        fingerprint=f"{rule.code}:{subject}",
    )

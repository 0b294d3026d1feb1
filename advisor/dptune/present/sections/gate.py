"""The outcome of `dptune check` as text: what tripped the gate, or why there is no verdict."""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice
from dptune.advise.trust import NO_VERDICT
from dptune.check.result import Budget, Gate, Regression
from dptune.present.amounts import several
from dptune.present.lines import Line, Role, wrapped
from dptune.present.sections.advice import ALTERNATIVE, change, savings, tag, what_to_do
from dptune.present.sections.skipped import folded

_OPENING: dict[str, tuple[str, Role]] = {
    "unjudgeable": ("UNJUDGEABLE: {why}, so it does not pass.", "error"),
    "failed": ("FAILED: {why}.", "error"),
    "inconclusive": ("INCONCLUSIVE: {why}.", "warning"),
}


def opening(gate: Gate) -> str:
    """One sentence: the outcome, and why it is that."""
    if gate.outcome in _OPENING:
        return _OPENING[gate.outcome][0].format(why=_why(gate))
    if gate.reservations:
        return f"PASSED with reservations: {_nothing(gate)}, but {' and '.join(gate.reservations)}."
    return f"PASSED: {_nothing(gate)}."


def page(gate: Gate, width: int) -> Iterator[Line]:
    """One sentence on the outcome, then the reasons for it."""
    role: Role = _OPENING[gate.outcome][1] if gate.outcome in _OPENING else "warning" if gate.reservations else "good"
    yield from wrapped(opening(gate), width, role=role)
    for run in gate.runs:
        yield from wrapped(f"run: {run}", width, "  ", "    ", "dim")
    for run in gate.baseline:
        yield from wrapped(f"baseline: {run}", width, "  ", "    ", "dim")
    if gate.outcome == "passed" and gate.verdict:
        yield from wrapped(f"verdict: {gate.verdict}", width, "  ", "    ")
    for advice in gate.tripped:
        yield from wrapped(f"{tag(advice)}: {advice.title}{_at(advice)}", width, "  ", "    ")
        if advice.remedy:
            label, words = what_to_do(advice.remedy)
            words = f"{words[:1].lower()}{words[1:]}" if label == ALTERNATIVE else words
            yield from wrapped(f"{label.lower()}: {words}", width, "    ", "      ")
        for words in savings(advice, gate.verified, gate.step_ns):
            role = "plain" if words.startswith("Verified") else "dim"
            yield from wrapped(f"{words[0].lower()}{words[1:]}", width, "    ", "      ", role)
    for budget in gate.budgets:
        yield from wrapped(f"budget {budget_in_words(budget)}", width, "  ", "    ")
    if gate.regression is not None:
        yield from wrapped(
            f"baseline: {gate.regression.outcome}: {gate.regression.text}".removesuffix(".") + ".", width, "  ", "    "
        )
    for over in gate.passed_over:
        yield from wrapped(f"not counted ({over.why}): {tag(over.advice)}", width, "  ", "    ", "dim")
    if gate.outcome != "passed":
        for reservation in gate.reservations:
            yield from wrapped(f"but: {reservation}", width, "  ", "    ", "dim")
    if gate.outcome != "failed":
        for finding in gate.trust.findings:
            if finding.level != "info":
                yield from wrapped(f"{finding.level}: {finding.text}", width, "  ", "    ")
        for reason, rules in _could_not_run(gate).items():
            yield from wrapped(f"could not run: {folded(rules)}: {reason}", width, "  ", "    ")


def _could_not_run(gate: Gate) -> dict[str, list[str]]:
    """Rules by why they could not run, without those that any torch.profiler trace lacks data for."""
    found: dict[str, list[str]] = {}
    if gate.trust.level != "unjudgeable":  # else all of them, for the reason that is given
        for skip in gate.skipped:
            if skip.could_not_run and not skip.needs_recording:
                found.setdefault(skip.reason, []).append(skip.rule)
    return found


def budget_in_words(budget: Budget) -> str:
    """`kept: step_ms, step time in ms: 12.3, at most 15`."""
    title = f"{budget.name}, {budget.what}"
    if budget.value is None:
        return f"not checked: {title}: not measured: {budget.why_missing}"
    outcome = "kept" if budget.kept else "broken"
    return f"{outcome}: {title}: {budget_value(budget)}, at most {budget.limit:g}"


def budget_value(budget: Budget) -> str:
    """With as many digits as tell on which side of the limit it is."""
    if budget.value is None:
        return "not measured"
    whole = len(f"{budget.value:.0f}")
    shown = (f"{budget.value:.{max(digits, whole)}g}" for digits in (3, 4, 6, 9, 17))
    return next(text for text in shown if (float(text) <= budget.limit) == budget.kept)


def at_level(gate: Gate) -> str:
    """The advice that trips the gate, by its impact and confidence."""
    if gate.fail_on == "never":
        return "findings are not checked"
    impact = "high impact" if gate.fail_on == "high" else f"at least {gate.fail_on} impact"
    least = "at least " if gate.fail_on == "high" else ""  # else said of both
    confidence = {"low": "", "medium": f" and {least}medium confidence", "high": " and high confidence"}
    return f"findings of {impact}{confidence[gate.least_confidence]}"


def _why(gate: Gate) -> str:
    if gate.outcome == "inconclusive":
        return _undecided(gate.regression)
    broken = [budget for budget in gate.budgets if budget.value is not None and not budget.kept]
    unknown = [unmeasured for unmeasured in gate.budgets if unmeasured.value is None]
    if gate.outcome == "unjudgeable":
        if gate.trust.level == "unjudgeable":
            return NO_VERDICT
        if unknown:
            return f"{several(len(unknown), 'budget')} could not be measured"
        return "it cannot be compared with the baseline"
    reasons = [f"{len(gate.tripped):,} {_of_number(at_level(gate), len(gate.tripped))}"] if gate.tripped else []
    reasons += [f"{several(len(broken), 'budget')} broken"] if broken else []
    if gate.baseline_fails and gate.regression is not None:
        known = gate.regression.outcome == "failed"
        reasons.append("slower than the baseline" if known else "a slowdown against the baseline is not excluded")
    return ", ".join(reasons)


def _undecided(regression: Regression | None) -> str:
    """What is known of a comparison without a verdict: what was measured."""
    if regression is None or regression.ratio is None or regression.ratio == 1:
        return "unknown whether it is slower than the baseline"
    steps = " of the fastest steps" if regression.fast_steps else ""
    measured = f"{change(regression.ratio)} {regression.objective}{steps} than the baseline"
    return f"{measured}, too uncertain for a verdict"


def _of_number(findings: str, number: int) -> str:
    return findings.replace("findings", "finding", 1) if number == 1 else findings


def _nothing(gate: Gate) -> str:
    words = at_level(gate) if gate.fail_on == "never" else f"no {at_level(gate)}"
    if gate.budgets:
        words += f", {several(len(gate.budgets), 'budget')} kept"
    return words + (", not slower than the baseline beyond the limit" if gate.regression is not None else "")


def _at(advice: Advice) -> str:
    return next((f" ({change.at})" for change in advice.changes if change.at), "")

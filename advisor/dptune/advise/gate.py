"""Whether runs pass: by the severity of their advice, by budgets, and by a baseline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from dptune import __version__
from dptune.advice import SEVERITIES, Advice, Report, Severity, Trust
from dptune.compared import Comparison
from dptune.judged import Budget, Gate, Outcome, PassedOver, Regression
from dptune.measured import Measured, Missing
from dptune.proof import Proof

FailOn = Severity | Literal["never"]
_WORST = ("sound", "partial", "unjudgeable")

# What a budget may be set for: in words with its unit, and how it is read.
BUDGETS: Mapping[str, tuple[str, Callable[[Measured], float]]] = {
    "step_ms": ("step time in ms", lambda run: run.step.median_ns / 1e6),
    "us_per_sample": ("time per sample in us", lambda run: run.step.median_ns / 1e3 / run.samples_per_step),
    "exposed_communication_share": (
        "exposed communication as a share of the step",
        lambda run: run.share("exposed_communication_ns"),
    ),
    "idle_share": ("idle time as a share of the step", lambda run: run.share("idle_ns")),
    "loader_wait_share": ("waiting for the loader as a share of the step", lambda run: run.input.wait_share),
    "peak_memory_gb": (
        "peak of reserved memory in GB",
        lambda run: max(one.peak_reserved_bytes for one in run.memory) / 1e9,
    ),
}


@dataclass(frozen=True)
class Terms:
    """What trips the gate. `accepted`: fingerprints of advice that does not; `max_regression`: None for any."""

    fail_on: FailOn = "warning"
    accepted: frozenset[str] = frozenset()
    budgets: Mapping[str, float] = field(default_factory=dict)
    max_regression: float | None = None


def judge(
    reports: Sequence[Report], terms: Terms, before: Sequence[Report] = (), regression: Regression | None = None
) -> Gate:
    """Judge one run, or several repeats of it: advice that most of them have counts, and medians of figures.

    Advice that most runs of `before`, the baseline, have as well is passed over.
    """
    now = _of_most(reports)
    there = {one.fingerprint for one in _of_most(before)}
    severe = [one for one in now if terms.fail_on != "never" and _level(one) >= SEVERITIES.index(terms.fail_on)]
    over = [
        PassedOver(advice=one, why="it is accepted" if one.fingerprint in terms.accepted else "the baseline has it too")
        for one in severe
        if one.fingerprint in terms.accepted | there
    ]
    tripped = [one for one in severe if one.fingerprint not in terms.accepted | there]
    budgets = [_budget(name, limit, reports) for name, limit in terms.budgets.items()]
    worst = max(reports, key=lambda one: _WORST.index(one.trust.level))
    unknown = {one.rule: one for report in reports for one in report.skipped}
    return Gate(
        dptune=__version__,
        outcome=outcome(worst.trust, tripped, budgets, regression),
        runs=[one.run.subject for one in reports],
        step_ns=reports[0].measured.step.known("median_ns"),
        fail_on=terms.fail_on,
        tripped=tripped,
        passed_over=over,
        verified=[
            proof for one in reports for proof in one.verified if proof.advice in {each.rule for each in tripped}
        ],
        budgets=budgets,
        regression=regression,
        trust=worst.trust,
        skipped=list(unknown.values()),
        quiet=[rule for rule in reports[0].quiet if all(rule in one.quiet for one in reports)],
        reservations=_reservations(worst, len(unknown)),
    )


def of_comparison(found: Comparison, limit: float) -> Regression:
    """The verdict of a comparison of recordings, A being the baseline."""
    told = found.compared
    verdict = told.verdict
    outcome = verdict.outcome if verdict.outcome in ("better", "worse") else "inconclusive"
    low, high = verdict.known("low_ratio"), verdict.known("high_ratio")
    ratio = verdict.known("ratio") or told.known("ratio")
    return _regression(told.objective, limit, outcome, ratio, (low, high), verdict.reason)


def of_proof(found: Proof, limit: float) -> Regression:
    """The verdict of trials, A being the baseline."""
    last = found.looks[-1] if found.looks else None
    fast = found.decided_by == "fast"
    ratio = found.known("fast_ratio" if fast else "ratio")
    between: tuple[float | None, float | None] = (None, None)
    if last is not None:
        between = (last.fast_low_ratio, last.fast_high_ratio) if fast else (last.low_ratio, last.high_ratio)
    return _regression(found.objective, limit, found.outcome, ratio, between, found.reason)


def _regression(
    objective: Literal["time per sample", "time per step"],
    limit: float,
    outcome: str,
    ratio: float | None,
    between: tuple[float | None, float | None],
    reason: str,
) -> Regression:
    """Worse by more than the limit fails; what is not known to be worse passes where more than that is excluded."""
    high = between[1]
    allowed = f"{100 * limit:g} % more is allowed"
    more = "" if ratio is None else f"{objective} is {100 * abs(ratio - 1):.1f} % {'more' if ratio > 1 else 'less'}"
    judged: Literal["passed", "failed", "inconclusive"]
    if outcome == "worse" and ratio is not None and ratio > 1 + limit:
        judged, text = "failed", f"{more}; {allowed}"
    elif outcome in ("better", "worse") or (high is not None and high <= 1 + limit):
        judged, text = "passed", f"{more}; {allowed}" if more else allowed
    else:
        judged, text = "inconclusive", f"{more}, which decides nothing: {reason}" if more else reason
    return Regression(
        objective=objective,
        limit_share=limit,
        outcome=judged,
        ratio=ratio,
        low_ratio=between[0],
        high_ratio=high,
        text=text[0].upper() + text[1:],
    )


def _of_most(reports: Sequence[Report]) -> list[Advice]:
    """Advice that more than half of the runs have, by its fingerprint, as the first of them says it."""
    counts = Counter(fingerprint for one in reports for fingerprint in {each.fingerprint for each in one.advice})
    first = {each.fingerprint: each for one in reversed(reports) for each in reversed(one.advice)}
    kept = [first[name] for name, count in counts.items() if 2 * count > len(reports)]
    order = [each.fingerprint for one in reports for each in one.advice]
    return sorted(kept, key=lambda one: order.index(one.fingerprint))


def _level(one: Advice) -> int:
    return SEVERITIES.index(one.severity)


def _budget(name: str, limit: float, reports: Sequence[Report]) -> Budget:
    what, read = BUDGETS[name]
    try:
        values = [float(read(one.measured)) for one in reports]
    except Missing as missing:
        return Budget(name=name, what=what, limit=limit, value=None, why_missing=missing.reason)
    except (ValueError, ZeroDivisionError):
        return Budget(name=name, what=what, limit=limit, value=None, why_missing="it was not measured")
    return Budget(name=name, what=what, limit=limit, value=median(values))


def outcome(
    trust: Trust, tripped: Sequence[Advice], budgets: Sequence[Budget], regression: Regression | None
) -> Outcome:
    """What all of it comes to; what cannot be judged does not pass."""
    if trust.level == "unjudgeable":
        return "unjudgeable"
    if tripped or any(one.value is not None and not one.kept for one in budgets):
        return "failed"
    if regression is not None and regression.outcome == "failed":
        return "failed"
    if any(one.value is None for one in budgets):
        return "unjudgeable"
    return "inconclusive" if regression is not None and regression.outcome == "inconclusive" else "passed"


def _reservations(worst: Report, unknown: int) -> list[str]:
    found = ["the run is partial"] if worst.trust.level == "partial" else []
    if unknown:
        found.append(f"{unknown} rule{'' if unknown == 1 else 's'} could not run on it (see `dptune report`)")
    return found

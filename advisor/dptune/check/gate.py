"""Whether runs pass: by the impact and confidence of their advice, by budgets, and by a baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal, NamedTuple

from dptune import __version__
from dptune.advice import CONFIDENCES, IMPACTS, Advice, Confidence, Impact, Report
from dptune.check.result import Budget, Gate, Outcome, PassedOver, Regression
from dptune.compare.result import Comparison
from dptune.measured import Measured, Missing
from dptune.prove.result import Proof

FailOn = Impact | Literal["never"]
_WORST = ("sound", "partial", "unjudgeable")

# What a budget may be set for: in words with its unit, and how it is read.
BUDGETS: Mapping[str, tuple[str, Callable[[Measured], float]]] = {
    "step_ms": ("step time in ms", lambda run: run.step.time_ns / 1e6),
    "us_per_sample": ("time per sample in us", lambda run: run.step.time_ns / 1e3 / run.samples_per_step),
    "exposed_communication_share": (
        "exposed communication and waiting as a share of the step",
        lambda run: run.step_share("exposed_communication_ns"),
    ),
    "idle_share": ("idle time as a share of the step", lambda run: run.step_share("idle_ns")),
    "loader_wait_share": ("waiting for the data loader as a share of the step", lambda run: run.input.wait_share),
    "peak_memory_gb": (
        "peak of reserved memory in GB",
        lambda run: max(memory.peak_reserved_bytes for memory in run.memory) / 1e9,
    ),
}

_OF_TIME = ("step_ms", "us_per_sample")


@dataclass(frozen=True)
class Terms:
    """What trips the gate.

    Advice trips it with at least this impact and this confidence. `accepted`: advice that does not, by its
    fingerprint, up to the impact that it was accepted at ("": any).
    """

    fail_on: FailOn = "medium"
    least_confidence: Confidence = "medium"
    accepted: Mapping[str, str] = field(default_factory=dict)
    budgets: Mapping[str, float] = field(default_factory=dict)
    max_regression: float = 0.05
    inconclusive_fails: bool = False


def judge(
    reports: Sequence[Report], terms: Terms, before: Sequence[Report] = (), regression: Regression | None = None
) -> Gate:
    """Judge one run, or several repeats of it: advice that most of them have counts, and medians of figures.

    Advice that most runs of `before`, the baseline, have as well is passed over, unless its impact has grown.
    """
    there = {advice.fingerprint: advice.impact for advice in _of_most(before)}
    tripped, over = [], []
    for advice in _of_most(reports, terms):
        if not _reaches(advice, terms):
            continue
        if _covered(advice, terms.accepted):
            over.append(PassedOver(advice=advice, why="accepted"))
        elif _covered(advice, there):
            over.append(PassedOver(advice=advice, why="the baseline has it too"))
        else:
            tripped.append(advice)
    counted = {advice.rule for advice in (*tripped, *(each.advice for each in over))}
    worst = max(reports, key=lambda candidate: _WORST.index(candidate.trust.level))
    unknown = {skipped_rule.rule: skipped_rule for report in reports for skipped_rule in report.skipped}
    could_not = {
        skipped_rule.rule
        for report in reports
        for skipped_rule in report.skipped
        if skipped_rule.could_not_run or skipped_rule.needs_recording
    }
    return decided(
        Gate(
            dptune=__version__,
            outcome="passed",
            runs=[run_report.run.subject for run_report in reports],
            baseline=[run_report.run.subject for run_report in before],
            verdict=reports[0].headline.verdict if len(reports) == 1 else "",
            step_ns=reports[0].measured.step.known("time_ns") if len(reports) == 1 else None,
            fail_on=terms.fail_on,
            least_confidence=terms.least_confidence,
            tripped=tripped,
            passed_over=over,
            verified=[
                proof
                for run_report in reports
                for proof in run_report.verified
                if proof.advice in {each.rule for each in tripped}
            ],
            budgets=[_budget(name, limit, reports) for name, limit in terms.budgets.items()],
            regression=regression,
            inconclusive_fails=terms.inconclusive_fails,
            trust=worst.trust,
            skipped=list(unknown.values()),
            below=[name for name in dict.fromkeys(e.rule for r in reports for e in r.advice) if name not in counted],
            quiet=[rule for rule in reports[0].quiet if all(rule in run_report.quiet for run_report in reports)],
            reservations=[
                *_reservations(worst, len(could_not)),
                *(
                    f"{advice.rule} is accepted up to {terms.accepted[advice.fingerprint]} impact and now has "
                    f"{advice.impact} impact"
                    for advice in tripped
                    if advice.fingerprint in terms.accepted
                ),
            ],
        )
    )


def decided(gate: Gate) -> Gate:
    """The gate with what all of it comes to; what cannot be judged does not pass."""
    return gate.model_copy(update={"outcome": _outcome(gate)})


def of_comparison(found: Comparison, limit: float) -> Regression:
    """The verdict of a comparison of recordings, A being the baseline."""
    compared = found.compared
    verdict = compared.verdict
    ratio = verdict.known("ratio") or compared.known("ratio")
    between = (verdict.known("low_ratio"), verdict.known("high_ratio"))
    inferred = compared.objective == "time per sample" and any(run.samples_inferred for run in compared.runs)
    reason = f"{verdict.reason} (inferred batch size)" if inferred else verdict.reason
    return _regression(compared.objective, limit, verdict.outcome, _Times(ratio, *between, between[1]), reason)


def of_proof(found: Proof, limit: float, at_most: float | None = None) -> Regression:
    """The verdict of trials, A being the baseline. `at_most`: the ratio of which they exclude more, if known."""
    if found.ended in ("cannot run", "not comparable"):
        return Regression(objective=found.objective, limit_share=limit, outcome="unjudgeable", text=found.reason)
    mean, fast = _Times(found.known("ratio")), _Times(found.known("fast_ratio"))
    if found.looks:
        last = found.looks[-1]  # later trials, up to the next one, do not count yet
        mean = _Times(last.ratio, last.low_ratio, last.high_ratio, at_most)
        fast = _Times(last.fast_ratio, last.fast_low_ratio, last.fast_high_ratio)
    deciding = fast if found.decided_by == "fast" else None
    return _regression(found.objective, limit, found.outcome, mean, found.reason, deciding)


class _Times(NamedTuple):
    """How many times as long it takes as the baseline, and the interval of that; None where not known.

    `most`: more than that is excluded.
    """

    ratio: float | None
    low: float | None = None
    high: float | None = None
    most: float | None = None


def _regression(
    objective: Literal["time per sample", "time per step"],
    limit: float,
    found: str,
    mean: _Times,
    reason: str,
    fast: _Times | None = None,
) -> Regression:
    """Found to be worse, and by more than the limit, fails; it passes where more than that is excluded.

    `fast` are the times of the fastest steps where these decide: whether that is more than is allowed is asked of
    them, and whether more can be excluded of all steps.
    """
    deciding, allowed_ratio = fast or mean, 1 + limit
    allowed = f"limit {100 * limit:g} %"
    steps = " of the fastest steps" if fast else ""
    more = f"{objective}{steps} is {_change(deciding.ratio)}" if deciding.ratio is not None else ""
    outcome: Literal["passed", "failed", "inconclusive"]
    if found == "worse" and deciding.ratio is not None and deciding.ratio > allowed_ratio:
        outcome, text = "failed", f"{more}; {allowed}"
    elif _at_most(mean.most, allowed_ratio) or (found == "better" and _at_most(mean.ratio, allowed_ratio)):
        outcome, text = "passed", f"{more}; {allowed}" if more else allowed
    elif found in ("better", "worse"):
        limits = f", and {_change(mean.most)} is not excluded" if mean.most is not None else ""
        outcome, text = "inconclusive", f"{more}{limits}; {allowed}"
    else:
        outcome, text = "inconclusive", f"{more}, not significant: {reason}" if more else reason
    return Regression(
        objective=objective,
        limit_share=limit,
        outcome=outcome,
        fast_steps=fast is not None,
        ratio=deciding.ratio,
        low_ratio=deciding.low,
        high_ratio=deciding.high,
        text=text[0].upper() + text[1:],
    )


def _at_most(ratio: float | None, allowed: float) -> bool:
    return ratio is not None and ratio <= allowed


def _change(ratio: float) -> str:
    return f"{100 * abs(ratio - 1):.1f} % {'more' if ratio > 1 else 'less'}"


def _reaches(advice: Advice, terms: Terms) -> bool:
    """Whether it has the impact and the confidence that trip the gate."""
    if terms.fail_on == "never" or _level(advice) < IMPACTS.index(terms.fail_on):
        return False
    return CONFIDENCES.index(advice.confidence) >= CONFIDENCES.index(terms.least_confidence)


def _of_most(reports: Sequence[Report], terms: Terms | None = None) -> list[Advice]:
    """Advice that more than half of the runs have, in their order, at the impact that more than half reach.

    With `terms` it reaches what trips the gate only where more than half do, each with impact and confidence.
    """
    of: dict[str, list[Advice]] = {}
    for report in reports:
        for name, recommendation in {each.fingerprint: each for each in reversed(report.advice)}.items():
            of.setdefault(name, []).append(recommendation)
    order = {name: n for n, name in enumerate(dict.fromkeys(e.fingerprint for r in reports for e in r.advice))}
    middle = len(reports) // 2

    def rank(advice: Advice) -> tuple[bool, int]:
        return terms is not None and _reaches(advice, terms), _level(advice)

    kept = [
        sorted(same_advice, key=rank, reverse=True)[middle] for same_advice in of.values() if len(same_advice) > middle
    ]
    return sorted(kept, key=lambda candidate: order[candidate.fingerprint])


def _covered(advice: Advice, known: Mapping[str, str]) -> bool:
    """Whether it is known at this impact or a worse one."""
    at = known.get(advice.fingerprint)
    return at is not None and (at not in IMPACTS or _level(advice) <= IMPACTS.index(at))


def _level(advice: Advice) -> int:
    return IMPACTS.index(advice.impact)


def _budget(name: str, limit: float, reports: Sequence[Report]) -> Budget:
    what, read = BUDGETS[name]
    try:
        values = [float(read(report.measured)) for report in reports]
    except Missing as missing:
        return Budget(name=name, what=what, limit=limit, value=None, why_missing=missing.reason)
    except (ValueError, ArithmeticError):
        return Budget(name=name, what=what, limit=limit, value=None, why_missing="it was not measured")
    if name in _OF_TIME and any(run_report.measured.step.basis == "traced" for run_report in reports):
        what += ", of traced steps, which take longer"
    if name == "us_per_sample" and any(report.measured.samples_inferred for report in reports):
        what += ", with an inferred batch size"
    return Budget(name=name, what=what, limit=limit, value=median(values))


def _outcome(gate: Gate) -> Outcome:
    slower = gate.regression.outcome if gate.regression is not None else "passed"
    if gate.trust.level == "unjudgeable":
        return "unjudgeable"
    if (
        gate.tripped
        or any(budget.value is not None and not budget.kept for budget in gate.budgets)
        or gate.baseline_fails
    ):
        return "failed"
    if slower == "unjudgeable" or any(figure.value is None for figure in gate.budgets):
        return "unjudgeable"
    return "inconclusive" if slower == "inconclusive" else "passed"


def _reservations(worst: Report, unknown: int) -> list[str]:
    found = ["the run is partial"] if worst.trust.level == "partial" else []
    broken = sum(finding.code == "rule-pack" for finding in worst.trust.findings)
    if broken:
        found.append(f"{broken} rule pack{'' if broken == 1 else 's'} did not load (see `dptune rules list`)")
    if not (worst.advice or worst.quiet or worst.skipped):
        found.append("no rules were selected")
    if unknown:
        section = "see `dptune report --section skipped`"
        found.append(f"{unknown} rule{'' if unknown == 1 else 's'} could not run ({section})")
    return found

"""Runs the rules on a run and puts the report together.

A rule that asks for a figure that is not there is skipped, with the reason. A rule that fails, or does not end, is
skipped too and named among the findings: no rule can take the report down with it.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dptune import __version__, rule
from dptune.advice import Advice, Report, RunSummary, Skipped, Trust
from dptune.advise import gpu_readings, packs
from dptune.advise.headline import headline
from dptune.advise.impact import saving_time
from dptune.advise.next_step import with_comparison
from dptune.advise.ranking import merged, ranked, settled
from dptune.advise.rule_calls import Questioner
from dptune.advise.straggler import LEAST_SHARE, LEAST_STEPS_SHARE, MOST_CHANCE
from dptune.advise.together import together, weighed
from dptune.advise.trust import judge, recording, why_not_asked
from dptune.capture.effect import without_effect
from dptune.config import Settings
from dptune.errors import UsageError
from dptune.finding import Finding
from dptune.knobs import written
from dptune.measured import Measured, Missing
from dptune.rule import RunView
from dptune.runfile.facts import Facts
from dptune.whatif.predicting import Predictor

if TYPE_CHECKING:
    from dptune.trace import Run


@dataclass
class Outcome:
    """What the rules said: advice, rules that could not run, rules with nothing to say, and rules that failed."""

    advice: list[Advice] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    quiet: list[str] = field(default_factory=list)
    failures: list[Finding] = field(default_factory=list)


def _found(run: Run) -> tuple[list[Facts], list[Finding]]:
    """The facts by rank, and what was found while recording and reading."""
    facts = [run.facts[rank] for rank in sorted(run.facts)]
    return facts, [*recording(run.record, facts), *gpu_readings.limits(run.record, facts), *run.findings]


def trust_in(run: Run, measured: Measured) -> Trust:
    """Whether the run can be judged, as its report says but for what rules add."""
    facts, findings = _found(run)
    return judge(measured, facts, findings)


def build_report(run: Run, measured: Measured, settings: Settings, *, advised: bool = True) -> Report:
    """The report of a run; without advice where that is not wanted, for rules may take seconds.

    Raises UsageError where the settings name a rule or threshold that is not installed.
    """
    facts, findings = _found(run)
    predictor = Predictor(run, measured)
    installed = packs.survey()
    report = assemble(summary(run), facts, findings, measured, settings, installed, predictor, advised=advised)
    if not predictor.failure:
        return report
    failed = Finding(code="model-failed", level="info", text=f"the step model failed: {predictor.failure}")
    trust = report.trust.model_copy(update={"findings": [*report.trust.findings, failed]})
    return report.model_copy(update={"trust": trust})


def assemble(
    about: RunSummary,
    facts: Sequence[Facts],
    findings: Iterable[Finding],
    measured: Measured,
    settings: Settings,
    installed: packs.Survey,
    predictor: rule.Predictor | None = None,
    *,
    advised: bool = True,
) -> Report:
    """The report, from what was read, what was measured, the rules there are, and what predicts for them."""
    try:
        settings.check_against(loaded.rule for loaded in installed.rules)
    except UsageError as error:
        error.hint += installed.not_loaded
        raise
    of_rules = [Finding(code="rule-pack", level="info", text=problem) for problem in installed.problems]
    chosen = [loaded for loaded in installed.rules if advised and settings.runs(loaded.rule)]
    if advised and installed.rules and not chosen:
        text = f"no rule is selected: `select` and `ignore` in {settings.source} leave none of {len(installed.rules)}"
        of_rules.append(Finding(code="no-rule-selected", level="info", text=text))
    trust = judge(measured, facts, [*findings, *of_rules])
    refused = {
        loaded.rule.code: why for loaded in chosen if (why := why_not_asked(loaded.rule, trust, recorded=bool(facts)))
    }
    asked = [loaded for loaded in chosen if loaded.rule.code not in refused]
    outcome = run_rules(asked, measured, facts, settings, predictor, times_hold=trust.level != "unjudgeable")
    outcome.skipped += [Skipped(rule=code, reason=why) for code, why in refused.items()]
    trust = trust.model_copy(update={"findings": [*trust.findings, *outcome.failures]})
    advice, saving_nothing = saving_time(outcome.advice)
    advice, contradicted = settled(merged(advice))
    view = RunView(measured, facts, predictor=predictor)
    advice, not_on_top = weighed(advice, view)
    if trust.level == "partial":
        advice = ranked(_no_surer_than_medium(recommendation) for recommendation in advice)
    advice = with_comparison(advice, measured, view.busy_ns())
    skipped = [*outcome.skipped, *saving_nothing, *contradicted, *not_on_top]
    return Report(
        dptune=__version__,
        run=about,
        headline=headline(
            measured,
            trust,
            advice,
            skipped,
            outcome.quiet,
            about.command is not None or bool(facts),
            view.busy_ns(),
            leads=_leads(view),
            locating={loaded.rule.code for loaded in chosen if loaded.rule.last},
            sources=about.sources,
        ),
        trust=trust,
        advice=advice,
        together=together(advice, view),
        skipped=skipped,
        quiet=outcome.quiet,
        measured=measured,
    )


def run_rules(
    rules: Iterable[packs.LoadedRule],
    measured: Measured,
    facts: Sequence[Facts],
    settings: Settings,
    predictor: rule.Predictor | None = None,
    *,
    times_hold: bool = True,
) -> Outcome:
    """Run all rules, dptune's own first; `last` rules run after all others and see their advice."""
    outcome, asked = Outcome(), Questioner(measured, facts, settings, predictor, times_hold)
    # Ours build the step model, which can take long.
    for loaded in sorted(rules, key=lambda loaded_rule: (loaded_rule.rule.last, not loaded_rule.ours)):
        code = loaded.rule.code
        with contextlib.redirect_stdout(sys.stderr):  # a report on stdout is for programs
            answer = asked.ask(loaded, tuple(outcome.advice) if loaded.rule.last else ())
        outcome.advice.extend(answer.said)
        if answer.missing or answer.failed:
            needs = loaded.rule.needs if answer.missing and not facts else ""
            outcome.skipped.append(Skipped(rule=code, reason=answer.missing or answer.failed, needs=needs))
        elif not answer.said:
            outcome.quiet.append(code)
        if answer.failed:
            text = f"{code} ({loaded.pack}) could not run: {answer.failed}"
            outcome.failures.append(Finding(code="rule-failed", level="info", text=text))
    return outcome


def _leads(view: RunView) -> bool:
    """Whether the straggler, if there is one, is the same rank in most steps; so it is where no step shows it.

    Not if most of its lag is that it waits longer for a core, because of other processes.
    """
    late = view.measured.known("straggler")
    try:
        if (
            late is not None
            and late.mean_lag_ns - view.core_wait_ns(late.rank) < LEAST_SHARE * view.measured.traced_step_ns
        ):
            return False
        return late is None or view.leads(late, LEAST_STEPS_SHARE, MOST_CHANCE)
    except Missing:
        return True


def summary(run: Run) -> RunSummary:
    """What was read, for the top of the report."""
    record = run.record
    return RunSummary(
        sources=run.sources,
        command=shlex.join(record.typed) if record else None,
        recorded=record.recorded if record else None,
        how_it_ended=record.ending.how if record else None,
        torch=next((facts.torch for facts in run.facts.values() if facts.torch), None),
        commit=(record.commit or None) if record else None,
        settings=_set_from_outside(run),
        rank_basis=run.rank_basis,
    )


def _set_from_outside(run: Run) -> list[str]:
    """`ddp.bucket_cap_mb=1`, with the reason where it did not take effect."""
    if run.record is None or not run.record.settings:
        return []
    why = without_effect(run.record.settings, list(run.facts.values())) if run.facts else {}
    named = {name: f"{name}={written(value)}" for name, value in run.record.settings.items()}
    return [f"{words} (did not take effect: {why[name]})" if name in why else words for name, words in named.items()]


def _no_surer_than_medium(advice: Advice) -> Advice:
    """Advice is no surer than the run it rests on, and of this one only a part was read."""
    return advice.model_copy(update={"confidence": "medium"}) if advice.confidence == "high" else advice

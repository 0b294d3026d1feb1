"""The verified changes of a run, for its later reports."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from dptune.advice import Advice, Headline, Report, Saving, Verified
from dptune.advise.expected_saving import expected_saving
from dptune.errors import RunError
from dptune.finding import Finding
from dptune.knobs import Value
from dptune.measured import digits, in_ms
from dptune.prove import folder as folders
from dptune.prove import judging, rerun
from dptune.prove.result import Proof
from dptune.runfile.paths import VERIFIED
from dptune.runfile.recognition import record_of

_OTHERWISE = 1.25  # times as long: a mean step may be so much longer than a median one


def with_proofs(report: Report, folder: Path, shown: str) -> Report:
    """The report with the proofs that lie in the run's folder, and with the command that proves each advice.

    `shown` is how the user names the folder.
    """
    unread: list[str] = []
    advised_by = {advised.rule: advised for advised in report.advice}
    found = [_beside(_of_machine(result, report), advised_by.get(result.advice)) for result in verified(folder, unread)]
    proven = {result.advice for result in found if result.outcome != "inconclusive"}
    advice = [_provable(advised, shown, proven) for advised in report.advice] if _startable(folder) else report.advice
    lost = [Finding(code="proof-unreadable", level="info", text=why) for why in sorted(unread)]
    trust = report.trust.model_copy(update={"findings": [*report.trust.findings, *lost]})
    headline = _with_verified(report, found)
    return report.model_copy(update={"verified": found, "advice": advice, "trust": trust, "headline": headline})


def _with_verified(report: Report, found: Sequence[Verified]) -> Headline:
    """The headline, with the verified saving of the change it names instead of the predicted one."""
    headline = report.headline
    named = next((advised for advised in report.advice if advised.rule == headline.rule), None)
    result = next((result for result in reversed(found) if result.advice == headline.rule), None)
    if named is None or result is None or result.outcome == "inconclusive" or result.ratio is None:
        return headline
    share = digits(100 * abs(1 - result.ratio))
    verified = f"Verified: {share} % {'less' if result.ratio < 1 else 'more'} {result.objective}."
    expected = expected_saving(named, report.measured.step.known("time_ns"))
    return headline.model_copy(update={"next": headline.next.replace(expected, verified)})


def verified(folder: Path, unread: list[str]) -> list[Verified]:
    """What was proven of it, the latest last; why a proof cannot be read is added to `unread`.

    Of one change the latest trials that came to a verdict, else the latest: those of other code, or cut short, take
    nothing away from a verdict that there is.
    """
    found: dict[tuple[str, str], Proof] = {}
    for proof in sorted(_proofs(folder / VERIFIED, unread), key=lambda candidate: candidate.trials[-1].began):
        change = (proof.b.name, proof.command)
        if proof.outcome != "inconclusive" or change not in found or found[change].outcome == "inconclusive":
            found[change] = proof
    return [as_verified(proof) for proof in sorted(found.values(), key=lambda kept: kept.trials[-1].began)]


def _of_machine(result: Verified, report: Report) -> Verified:
    """With a word where the script as it is took otherwise long in its trials than when it was recorded."""
    step = report.measured.step
    recorded_ns = step.known("time_ns") if step.basis == "untraced" else None
    if recorded_ns is None or result.before_ns is None or result.command:
        return result
    times = result.before_ns / recorded_ns
    if 1 / _OTHERWISE < times < _OTHERWISE:
        return result
    what = f"without the change, a step took {in_ms(result.before_ns)} ms in trials, but {in_ms(recorded_ns)} ms when"
    words = f"{what} the run was recorded: the machine or the script has changed"
    return result.model_copy(update={"warnings": [*result.warnings, words]})


def _beside(result: Verified, advice: Advice | None) -> Verified:
    """With a warning where the measured saving is not the predicted one."""
    if advice is None or advice.saves is None or result.command or result.changes != _set_by(advice):
        return result
    words = against(advice.saves, result)
    return result.model_copy(update={"warnings": [*result.warnings, words]}) if words else result


def _set_by(advice: Advice) -> dict[str, Value]:
    return {change.knob: change.then for change in advice.changes}


def against(saves: Saving, result: Verified) -> str:
    """How the measured interval differs from the predicted one; empty where they overlap.

    A prediction is of mean steps, and of samples where a step has more of them.
    """
    of_steps = result.objective == "time per step" and saves.samples_times != 1
    if result.low_ratio is None or result.high_ratio is None or result.fast_steps or of_steps:
        return ""
    shares = f"{digits(100 * saves.low_share)} to {digits(100 * saves.high_share)} %"
    if 1 - result.low_ratio < saves.low_share:
        return f"below the prediction ({shares}): the prediction does not hold on this machine"
    if 1 - result.high_ratio > saves.high_share:
        most = f"the upper bound of {digits(100 * saves.high_share)} %"
        return f"more than {most if saves.large_unknown else f'predicted ({shares})'}"
    return ""


def _proofs(place: Path, unread: list[str]) -> Iterator[Proof]:
    for path in (*place.glob(f"*/{folders.PROOF}"), *place.glob(f"{folders.EARLIER}/*/{folders.PROOF}")):
        try:
            proof = folders.read(path)
        except RunError as error:
            unread.append(error.message)
            continue
        if proof.trials and proof.ended not in ("cannot run", "not comparable"):
            yield proof


def _startable(folder: Path) -> bool:
    """Whether the run can be started again from here."""
    try:
        record = record_of(folder)
        rerun.directory_of(record)
        rerun.words_of(record)
        rerun.settings_of(record)
    except (OSError, ValueError, RunError):
        return False
    return True


def _provable(advice: Advice, shown: str, proven: Collection[str]) -> Advice:
    """With the command that proves it, where that was not done."""
    if advice.verify or not advice.changes or advice.rule in proven:
        return advice
    return advice.model_copy(update={"verify": f"dptune verify {shown} --advice {advice.rule}"})


def _in_vain(proof: Proof) -> list[str]:
    """Settings that did not take effect in some trial, or for which that is unknown."""
    reasons = {name: why for trial in proof.trials for name, why in trial.without_effect.items()}
    return [f"{name}: {why}" for name, why in reasons.items()]


def as_verified(proof: Proof) -> Verified:
    """A proof as a report has it."""
    fast = proof.decided_by == "fast"
    last = proof.looks[-1] if proof.looks and proof.looks[-1].runs == proof.pairs else None  # of these very trials
    return Verified(
        name=proof.b.name,
        advice=proof.advice,
        changes=proof.changes,
        outcome=proof.outcome,
        reason=proof.reason,
        objective=proof.objective,
        fast_steps=fast,
        ratio=proof.known("fast_ratio" if fast else "ratio"),
        low_ratio=None if last is None else last.fast_low_ratio if fast else last.low_ratio,
        high_ratio=None if last is None else last.fast_high_ratio if fast else last.high_ratio,
        before_ns=None if (step_ns := proof.known("a_step_ns")) is None else round(step_ns),
        trials=proof.pairs,
        learning=proof.learning.reason,
        learns=proof.learning.outcome,
        command=proof.command,
        warnings=[*judging.failures(proof.trials), *_in_vain(proof), *proof.rewritten],
    )

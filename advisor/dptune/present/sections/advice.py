"""One piece of advice as a card: what to change, why, what it saves, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dptune.advice import Advice, Change, Evidence, Kind, Report, Saving, Verified
from dptune.knobs import ENVIRONMENT, Value, of_change
from dptune.measured import Measured
from dptune.present.amounts import between, in_unit, milliseconds, ns_as_ms, number, percent, several
from dptune.present.lines import NARROW, Line, Role, code, heading, labelled, line, wrapped

KINDS: dict[Kind, str] = {
    "time": "Recommendations: speed",
    "risk": "Recommendations: risks",
    "convergence": "Recommendations: convergence (hypotheses, no saving claimed)",
}
ALTERNATIVE = "Or"  # how a remedy starts that is another way to do what the settings do
_INQUIRIES = ("Compare ", "Find out ", "Open ")  # how a remedy starts that is no change yet
_LOW_CONFIDENCE = "Low confidence: check the cause before you change anything"
_BASIS = {
    "measured": "Measured by running the change",
    "replayed": "Predicted by replaying the recorded steps",
    "sampled": "Predicted from stack samples of untraced steps",
    "timed": "Predicted from times measured in untraced steps",
    "bound": "Upper bound: actual savings may be lower",
}
_HOW = {
    "measured": "Measured",
    "replayed": "Predicted",
    "sampled": "Predicted",
    "timed": "Predicted",
    "bound": "Upper bound",
}
_OUTCOMES = {"better": "faster", "worse": "slower", "inconclusive": "inconclusive"}
IMPACT_ROLES: dict[str, Role] = {"high": "error", "medium": "warning", "low": "note"}


def advice(report: Report, width: int) -> Iterator[Line]:
    """Every card, ranked within its kind."""
    if not report.advice:
        yield from heading("Recommendations", width)
        yield from wrapped(nothing_to_say(report), width, "  ")
    number_of = 0
    for title, cards in sections(report.advice):
        yield from heading(title, width)
        for card in cards:
            number_of += 1
            yield from _first(number_of, card, width)
            yield from body(card, report, width, "   ")
    yield from other_proofs(report, width)


def sections(advice: Sequence[Advice]) -> list[tuple[str, list[Advice]]]:
    """Advice by its kind, as ranked, each kind with its title; low confidence in a section of its own, the last."""
    kinds = dict.fromkeys(card.kind for card in advice)
    found = [
        (KINDS[kind], [card for card in advice if card.kind == kind and card.confidence != "low"]) for kind in kinds
    ]
    found.append((_LOW_CONFIDENCE, [card for card in advice if card.confidence == "low"]))
    return [(title, cards) for title, cards in found if cards]


def proven(report: Report, rule: str, width: int, indent: str = "") -> Iterator[Line]:
    """What came of running the advice of a rule, if it was run."""
    for proof in proofs_of(rule, report.verified):
        yield from labelled("Verified", in_words(proof), width, indent=indent, role="strong")


def proofs_of(rule: str, verified: Sequence[Verified]) -> list[Verified]:
    """The verified changes that a rule recommended."""
    return [proof for proof in verified if rule and proof.advice == rule]


def other_proofs(report: Report, width: int) -> Iterator[Line]:
    """Changes that were run and are no advice of this report."""
    advised = {card.rule for card in report.advice}
    others = [proof for proof in report.verified if proof.advice not in advised]
    if others:
        yield from heading("Other verified changes", width)
    for other in others:
        yield from wrapped(f"{other.name}: {in_words(other)}", width, "  ", "    ")


def in_words(proof: Verified) -> str:
    """Verdict, how much, and how sure."""
    of = f", of `{proof.command}`" if proof.command else ""
    if proof.ratio is None:
        return f"inconclusive{of}: {proof.reason}"
    between = ""
    if proof.low_ratio is not None and proof.high_ratio is not None:
        between = f"interval {_interval(proof.ratio, proof.low_ratio, proof.high_ratio)}, "
    steps = " of the fastest steps" if proof.fast_steps else ""
    trials = f"{several(proof.trials, 'trial')} per side"
    words = f"{_OUTCOMES[proof.outcome]}: {change(proof.ratio)} {proof.objective}{steps} ({between}{trials})"
    other = [f"training results differ: {proof.learning}"] if proof.learns == "other" else []
    verdict = f"{words}{of}" if proof.outcome != "inconclusive" else f"{words}{of}: {proof.reason}"
    return "; ".join([verdict, *other, *proof.warnings])


def _interval(ratio: float, low: float, high: float) -> str:
    """`28.5-39.8 %` where it is in the direction of the ratio, else `5.0 % less to 1.0 % more`."""
    text, direction = changes(low, high), change(ratio).rpartition(" ")[2]
    same = text.count(" % ") == 1 and text.endswith(f" {direction}")
    return text.removesuffix(f" {direction}").replace(" to ", "-") if same else text


def change(ratio: float) -> str:
    """`12.3 % less`, `4.0 % more`, `the same`."""
    share = ratio - 1
    if abs(share) < 0.0005:
        return "the same"
    return f"{percent(abs(share))} {'less' if share < 0 else 'more'}"


def changes(low: float, high: float) -> str:
    """An interval: `28.5 to 39.8 % less`, the lesser change first, or `5.0 % less to 1.0 % more`."""
    first, last = sorted((low, high), key=lambda ratio: abs(ratio - 1))
    direction = change(last).rpartition(" ")[2]
    if change(first).endswith(f" % {direction}"):
        return f"{change(first).removesuffix(f' % {direction}')} to {change(last)}"
    return f"{change(low)} to {change(high)}"


def nothing_to_say(report: Report) -> str:
    """What an empty list of advice means on this run."""
    if report.trust.level == "unjudgeable":
        return "Not enough reliable data for a verdict: an empty list does not mean that the run is healthy."
    could_not_run = sum(skip.could_not_run for skip in report.skipped)
    needing = sum(skip.needs_recording for skip in report.skipped)
    lacking = [f"{several(could_not_run, 'rule')} could not run"] if could_not_run else []
    if needing:
        count = f"{needing} more" if lacking else several(needing, "rule")
        lacking.append(f"{count} need{'s' if needing == 1 else ''} a recording")
    if lacking:
        return f"No findings, but {' and '.join(lacking)} (see below)."
    if not report.quiet and not report.skipped:
        return "No rules were selected, so an empty list says nothing about the run."
    return "All rules ran; no findings."


def tag(card: Advice) -> str:
    """Impact, confidence, rule and name in one short line."""
    return f"{rated(card)}: {card.rule} {card.slug}"


def rated(card: Advice) -> str:
    """Impact and confidence: `high impact, medium confidence`."""
    return f"{card.impact} impact, {card.confidence} confidence"


def body(card: Advice, report: Report, width: int, indent: str = "", fold_code: bool = False) -> Iterator[Line]:
    """The labelled lines below a card's title: what it saves first, and that as verified before what was predicted.

    `fold_code` where what runs over would be folded anyhow.
    """
    measured = report.measured
    fold_at = width if fold_code or width < NARROW else None
    yield from proven(report, card.rule, width, indent)
    verified = bool(proofs_of(card.rule, report.verified))
    if card.saves:
        step_ns = measured.step.known("time_ns")
        if verified:
            yield from labelled(_HOW[card.saves.basis], f"saves {_expected(card.saves, step_ns)}", width, indent=indent)
        else:
            yield from labelled("Saves", saving(card.saves, step_ns), width, indent=indent, role="strong")
        per_sample = "" if card.saves.large_unknown else _per_sample(card.saves)
        if per_sample:
            yield from labelled("", per_sample, width, indent=indent)
    yield from labelled("Why", card.why, width, indent=indent)
    remedy = list(labelled(*what_to_do(card.remedy), width, indent=indent)) if card.remedy else []
    yield from remedy if card.remedy_first else ()
    for change in card.changes:
        yield from labelled("Change", _change(change), width, indent=indent)
        yield from code(change.paste, f"{indent}{' ' * 12}" if width >= NARROW else f"{indent}  ", fold_at)
    yield from () if card.remedy_first else remedy
    for number_of, evidence in enumerate(card.evidence):
        text = _evidence(evidence, measured)
        yield from labelled("" if number_of else "Evidence", text, width, indent=indent, hang="  ")
    if card.saves:
        if not verified:
            yield from labelled(*_found(card.saves), width, indent=indent)
        if card.saves.replayed_share is not None and not verified:
            replayed = f"{percent(card.saves.replayed_share)} less time per traced step (interval unknown)"
            yield from labelled("Replayed", replayed, width, indent=indent)
        elif card.saves.unpredicted and not verified and not card.saves.large_unknown:
            yield from labelled("Prediction", f"none: {card.saves.unpredicted}", width, indent=indent)
    yield from labelled("Confidence", card.confidence, width, indent=indent)
    yield from labelled("Results", _results(card), width, indent=indent)
    if card.verify:
        yield from labelled("Verify", card.verify, width, indent=indent, role="code")
    yield from labelled("More", f"dptune rules explain {card.rule}", width, indent=indent, role="code")


def saving(saves: Saving, step_ns: int | None) -> str:
    """The interval in ms and percent, with its basis in plain words; no interval where only a large bound is known."""
    return f"{_amount_saved(saves, step_ns)}{'' if saves.large_unknown else f'. {_BASIS[saves.basis]}'}"


def _found(saves: Saving) -> tuple[str, str]:
    """How the saving was found: a label, and words."""
    return ("Basis", f"upper bound: {saves.how}") if saves.basis == "bound" else (_HOW[saves.basis], saves.how)


def _expected(saves: Saving, step_ns: int | None) -> str:
    """What was expected of a change that was run since, and how that was found."""
    return f"{_amount_saved(saves, step_ns)}; {saves.how}"


def _amount_saved(saves: Saving, step_ns: int | None) -> str:
    if saves.large_unknown:
        return _large_unknown(saves, step_ns)
    if saves.samples_times != 1:
        part = between(percent(saves.low_share)[:-2], percent(saves.high_share)[:-2], "%")
        return f"{part} of the time per sample, with {saves.samples_times:g}x the samples per step"
    interval = between(number(saves.low_ms), number(saves.high_ms), "ms")
    shares = between(percent(saves.low_share)[:-2], percent(saves.high_share)[:-2], "%")
    return f"{interval} of {_step(saves, step_ns)} ({shares})"


def savings(card: Advice, verified: Sequence[Verified], step_ns: int | None) -> list[str]:
    """What a recommendation saves, as sentences without full stops: verified before predicted."""
    proofs = [f"Verified: {in_words(proof)}" for proof in proofs_of(card.rule, verified)]
    if card.saves is None:
        return proofs
    if proofs:
        return [*proofs, f"{_HOW[card.saves.basis]}: {_amount_saved(card.saves, step_ns)}"]
    return [f"{'Saving:' if card.saves.large_unknown else 'Saves'} {saving(card.saves, step_ns)}"]


def _large_unknown(saves: Saving, step_ns: int | None) -> str:
    """`unknown; upper bound 34.2 ms of each 52.1 ms step (65.6 %), not predicted`."""
    most = f"{milliseconds(saves.high_ms)} of {_step(saves, step_ns)} ({percent(saves.high_share)})"
    if saves.samples_times != 1:
        many = f"with {saves.samples_times:g}x the samples per step"
        most = f"{percent(saves.high_share)} of the time per sample, {many}"
    return f"unknown; upper bound {most}, not predicted"


def _step(saves: Saving, step_ns: int | None) -> str:
    if saves.mean_step_ms is not None:
        return f"the mean step of {milliseconds(saves.mean_step_ms)}"
    return "each step" if step_ns is None else f"each {milliseconds(step_ns / 1e6)} step"


def _first(number_of: int, card: Advice, width: int) -> Iterator[Line]:
    yield line("")
    yield from wrapped(tag(card), width, f"{number_of:>2} ", "   ", IMPACT_ROLES[card.impact])
    yield from wrapped(card.title, width, "   ", role="strong")


def _per_sample(saves: Saving) -> str:
    if saves.low_us_per_sample is None or saves.high_us_per_sample is None or not saves.global_batch:
        return ""
    interval = between(number(saves.low_us_per_sample), number(saves.high_us_per_sample), "us per sample")
    return f"= {interval} at {saves.global_batch:,} samples per step"


def _change(change: Change) -> str:
    known = of_change(change.knob)
    now = _value(change.now) if change.now is not None else "unset or unknown"
    unit = f" {known.unit}" if known.unit else ""
    where = f" at {change.at}" if change.at else ""
    what = "" if change.knob.startswith(ENVIRONMENT) else f": {known.summary}"  # which would repeat the name
    return f"set {change.knob} to {_value(change.then)}{unit} (now {now}){where}{what}"


def what_to_do(remedy: str) -> tuple[str, str]:
    """What to do, with its label: an alternative to a setting, what to find out, or a change."""
    if remedy.startswith(f"{ALTERNATIVE} "):
        words = remedy.removeprefix(f"{ALTERNATIVE} ")
        return ALTERNATIVE, f"{words[:1].upper()}{words[1:]}"
    return ("Check" if remedy.startswith(_INQUIRIES) else "Change"), remedy


def _value(value: Value) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _evidence(evidence: Evidence, measured: Measured) -> str:
    words = f"{evidence.label}: {in_unit(evidence.value, evidence.unit)}"
    if evidence.start_ns is not None:
        return f"{words} (see {_when(evidence.rank, evidence.start_ns, evidence.end_ns, measured)})"
    return words if evidence.rank is None else f"{words} (rank {evidence.rank})"


def _when(rank: int | None, start_ns: int, end_ns: int | None, measured: Measured) -> str:
    """`rank 1, step 47, 3.2 ms after its start, for 16.9 ms`, or `the whole step, 60 ms`; on the trace's clock if it
    is outside of every step.
    """
    took = "" if end_ns is None else f", for {ns_as_ms(end_ns - start_ns)} ms"
    devices = (
        device for rank_figures in measured.ranks if rank_figures.rank == rank for device in rank_figures.devices
    )
    for step in (step for device in devices for step in device.steps):
        if step.start_ns <= start_ns < step.start_ns + step.account.window_ns:
            after = start_ns - step.start_ns
            if not after and end_ns == step.start_ns + step.account.window_ns:
                return f"rank {rank}, step {step.number}: the whole step, {ns_as_ms(end_ns - start_ns)} ms"
            late = f", {ns_as_ms(after)} ms after its start" if after else ""
            return f"rank {rank}, step {step.number}{late}{took}"
    return f"rank {rank}, at {start_ns / 1e3:,.3f} us on its trace's clock{took}"


def _results(card: Advice) -> str:
    if card.numerics == "same":
        return f"unchanged. {card.watch}".strip()
    return f"may change. {card.watch}".strip()

"""Verdict, why, next: three short sentences at the top of every report, for someone who has never read one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dptune.advice import Advice, Headline, Skipped, Trust
from dptune.finding import Finding
from dptune.measured import Measured, Missing

BOUND_SHARE = 0.15  # a step that pays this for one thing is bound by it: an error's severity
RECORD = "Record it: `dptune profile train.py`, with your script's name and arguments."

_REMEDIES = {
    "recording-short": "Let the script run to 11 optimizer steps at least, and record fewer: "
    "`dptune profile --warmup 1 --unprofiled 4 --lean 3 --rich 1` before your script.",
    "steps-missing": "Call `profiler.step()` after each optimizer step, or record with `dptune profile train.py`.",
    "steps-few": "Record more steps: `dptune profile --lean 5` before your script, which must run that long.",
    "device-events-missing": "Record again with every activity of the profiler on, or with `dptune profile train.py`.",
    "gpu-events-missing": "Record again with ProfilerActivity.CUDA, or with `dptune profile train.py`.",
    "several-ranks-in-one-file": "Write one trace per rank, or record with `dptune profile train.py`.",
}
_BROKEN_OFF = ("rank-killed", "recording-stopped", "recording-broken-off")  # to be seen to before recording again


@dataclass(frozen=True)
class _Limit:
    """Something other than computing that a step can spend its time on, and the share from which it is worth saying."""

    verdict: str
    sentence: str
    figure: str
    class_ns: str
    least_share: float


_COMMUNICATION = _Limit(
    "Communication-bound",
    "{} of each step waits for communication",
    "exposed communication",
    "exchange_ns",
    0.05,
)
_LATE = _Limit(
    "Held up by late ranks",
    "{} of each step is spent in collectives that wait for the last rank to come",
    "waiting for late ranks",
    "exposed_waiting_ns",
    0.05,
)
_INPUT = _Limit("Input-bound", "{} of each step waits for the data loader", "idle for input", "input_idle_ns", 0.05)
_COPY = _Limit("Copy-bound", "{} of each step waits for copies between memories", "exposed copies", "copy_ns", 0.05)
_IDLE = _Limit(
    "Idle",
    "the device runs nothing for {} of each step",
    "idle otherwise",
    "other_idle_ns",
    0.15,  # 5 to 10 % of it is common on healthy runs
)
_LIMITS = (_COMMUNICATION, _LATE, _INPUT, _COPY, _IDLE)


def headline(
    measured: Measured,
    trust: Trust,
    advice: Sequence[Advice],
    skipped: Sequence[Skipped],
    quiet: Sequence[str],
    recorded: bool,
) -> Headline:
    """What limits the step, the figures behind that, and the one thing to do next."""
    if trust.level == "unjudgeable":
        return _unjudgeable(trust.findings)
    try:
        shares = _shares(measured)
        why = _why(measured)
    except Missing as missing:
        return Headline(verdict="This run cannot be judged.", why=_sentence(missing.reason), next=RECORD)
    if trust.level == "partial":
        first = next(f.text for f in trust.findings if f.level == "partial")
        why += f" Only a part of the run could be read: {first}."
    answered = {one.rule for one in advice} | set(quiet)
    unanswered = {one.rule for one in skipped} - answered
    if unanswered or not answered:
        why += f" {len(unanswered)} of {len(answered | unanswered)} rules could not run."
    whole = trust.level == "sound" and bool(answered) and not unanswered
    limit = next((one for one in sorted(shares, key=lambda s: -shares[s]) if shares[one] >= one.least_share), None)
    verdict = _limited(limit, shares[limit]) if limit else _unlimited(advice, whole)
    straggler = measured.known("straggler")
    late = straggler.rank if limit is _LATE and straggler is not None else None
    return Headline(verdict=verdict, why=why, next=_next(advice, limit is not None, late, whole, recorded))


def _unjudgeable(findings: Sequence[Finding]) -> Headline:
    why = [one for one in findings if one.level == "unjudgeable"]
    remedy = next((_REMEDIES[one.code] for one in why if one.code in _REMEDIES), RECORD)
    broken = next((one for one in findings if one.code in _BROKEN_OFF), None)
    if broken is not None:
        remedy = f"{_sentence(broken.text)} See to that first, then record again."
    return Headline(verdict="This run cannot be judged.", why=_sentence(why[0].text), next=remedy)


def _shares(measured: Measured) -> dict[_Limit, float]:
    """What a step spends on anything but computing; the loader's wait as the script saw it, where that is known."""
    shares = {limit: measured.share(limit.class_ns) for limit in _LIMITS}
    wait = measured.input.known("wait_share")
    if wait is not None:
        shares[_INPUT] = wait
    return shares


def _why(measured: Measured) -> str:
    step = measured.step
    basis = "without the profiler" if step.basis == "unprofiled" else "traced"
    parts = [f"computing {_percent(measured.share('compute_ns'))}"]
    for limit in _LIMITS:
        share = measured.share(limit.class_ns)
        if share >= 0.001:
            parts.append(f"{limit.figure} {_percent(share)}")
    why = f"A step takes {_milliseconds(step.median_ns)} ({basis}): {', '.join(parts)}."
    wait = measured.input.known("wait_share")
    if wait is not None and wait >= 0.05:
        why += f" The script waits for its data loader {_percent(wait)} of the time ({measured.input.basis} steps)."
    return why


def _milliseconds(duration_ns: int) -> str:
    ms = duration_ns / 1e6
    return f"{ms:,.0f} ms" if ms >= 100 else f"{ms:.3g} ms"


def _limited(limit: _Limit, share: float) -> str:
    what = limit.sentence.format(_percent(share))
    return f"{limit.verdict}: {what}." if share >= BOUND_SHARE else f"Mostly computing, but {what}."


def _unlimited(advice: Sequence[Advice], whole: bool) -> str:
    if any(one.severity != "note" and one.kind == "time" for one in advice):
        return "Compute-bound, and the computing can be made cheaper."
    if any(one.severity != "note" for one in advice):
        return "The device computes nearly all the time, but something else needs a look."
    if advice:
        return "The device computes nearly all the time: only small things were found."
    if whole:
        return "No bottleneck found: the device computes nearly all the time, and no rule found anything to change."
    return "Nothing was found, but not everything could be looked at."


def _next(advice: Sequence[Advice], limited: bool, late: int | None, whole: bool, recorded: bool) -> str:
    if advice:
        return _change(advice[0])
    if limited and late is not None:
        return f"Look at rank {late}, which comes last: under Ranks stands what it does meanwhile."
    if not whole and not recorded:
        return "Record the run, so that every rule can look at it: `dptune profile train.py`."
    if limited:
        return "No rule has a remedy. Open the trace in https://ui.perfetto.dev and look at where the device waits."
    if not whole:
        return "Read below what could not be read or judged, and why."
    return "Nothing to change. Record again after the next change to the script."


def _change(one: Advice) -> str:
    if not one.changes:
        return f"{_sentence(one.title)} How: `dptune rules explain {one.rule}`."
    change = one.changes[0]
    use = f"In {change.at}, use" if change.at else "Use"
    first, more, _ = change.paste.partition("\n")
    what = f"`{first} ...` (all lines: see {one.rule})" if more else f"`{first}`"
    saves = ""
    if one.saves and one.saves.basis == "bound":
        saves = f" It cannot save more than {one.saves.high_ms:.3g} ms of each step."
    elif one.saves:
        saves = f" It saves {one.saves.low_ms:.3g} to {one.saves.high_ms:.3g} ms of each step."
    return f"{use} {what}.{saves}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.02 or share == 0 else f"{100 * share:.1f} %"


def _sentence(text: str) -> str:
    first = text.split(" ", 1)[0]
    begun = text if any(sign in first for sign in "._/") else f"{text[:1].upper()}{text[1:]}"  # a file keeps its name
    return f"{begun}{'' if text.endswith('.') else '.'}"

"""Verdict, why, next: three short sentences at the top of every report, for someone who has never read one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from dptune.advice import Advice, Headline, Skipped, Trust
from dptune.advise.limits import (
    IDLE,
    LATE,
    MOSTLY,
    NEARLY_ALL,
    UNSPLIT,
    Limit,
    greatest,
    milliseconds,
    parts,
    percent,
    shares,
)
from dptune.advise.straggler import LEAST_NAMED_SHARE, LEAST_SHARE, Straggler, straggler
from dptune.finding import Finding
from dptune.measured import Measured, Missing, QueuedSteps, StragglerFigures, by_profiler, digits

RECORD = "Record it: `dptune profile train.py`, with your script's name and arguments."
_SELECT = "See which rules run by `dptune rules list`; `select` and `ignore` under [tool.dptune] decide it."

_LOSSES = (
    "device-events-lost",
    "device-events-misdated",
    "device-events-outside-steps",
    "device-stream-missing",
    "communication-missing",
)
_REMEDIES = {
    **dict.fromkeys(
        _LOSSES,
        "Record again with fewer steps and without shapes and stacks: a shorter recording loses fewer events. To judge "
        "only the ranks without losses, pass only their traces.",
    ),
    "device-unknown": "dptune reads torch.profiler traces of CPUs and of CUDA, ROCm, XPU, MTIA and Gaudi devices.",
    "recording-short": "Let the script run to 11 optimizer steps at least, and record fewer: "
    "`dptune profile --warmup 1 --unprofiled 4 --lean 3 --rich 1` before your script.",
    "steps-missing": "Call `profiler.step()` after each optimizer step, or record with `dptune profile train.py`.",
    "steps-few": "Record more steps: `dptune profile --lean 5` before your script, which must run that long, or a "
    "longer `active` in the profiler's schedule.",
    "device-events-missing": "Record again with every activity of the profiler on, or with `dptune profile train.py`.",
    "gpu-events-missing": "Record again with ProfilerActivity.CUDA, or with `dptune profile train.py`.",
    "several-ranks-in-one-file": "Write one trace per rank, or record with `dptune profile train.py`.",
}
_SLOW = {"host": "host", "kernels": "device", "copies": "link to the device"}
_BROKEN_OFF = ("rank-killed", "recording-stopped", "recording-broken-off")  # to be seen to before recording again


def headline(
    measured: Measured,
    trust: Trust,
    advice: Sequence[Advice],
    skipped: Sequence[Skipped],
    quiet: Sequence[str],
    recorded: bool,
    busy_ns: Mapping[int, float] | None = None,
    locating: Collection[str] = (),
) -> Headline:
    """What limits the step, the figures behind that, and the one thing to do next.

    `busy_ns` is what each rank does without the profiler while it waits for none, where that is known; `locating` are
    rules whose titles name a cost and its place in the script, where nothing else stands out.
    """
    if trust.level == "unjudgeable":
        return _unjudgeable(trust.findings)
    try:
        found = shares(measured)
        late = straggler(measured, busy_ns)
        why = _why(measured)
    except Missing as missing:
        return Headline(verdict="This run cannot be judged.", why=sentence(missing.reason), next=RECORD)
    heads = late is not None and late.share >= max(
        LEAST_SHARE, *(found[one] - late.own.get(one.class_ns, 0.0) for one in found if one is not LATE)
    )
    if late is not None:
        why += f" {late.why}" if heads else f" Besides, rank {late.figures.rank} comes {late.lag}. {late.why}"
    if trust.level == "partial":
        first = next(f.text for f in trust.findings if f.level == "partial")
        why += f" Only a part of the run could be read: {first}."
    answered = {one.rule for one in advice} | set(quiet)
    wrong = next((one for one in advice if one.threatens_results), None)
    unanswered = {one.rule for one in skipped} - answered
    if not answered and not unanswered:
        why += " No rule was asked."
    elif unanswered:
        why += f" {len(unanswered)} of {len(answered | unanswered)} rules could not run."
    if wrong is not None:
        how = f"{wrong.watch} Details: `dptune rules explain {wrong.rule}`."
        return Headline(verdict=sentence(wrong.title), why=why, next=how, rule=wrong.rule)
    if late is not None and heads:
        verdict = f"Held up by rank {late.figures.rank}: it comes {late.lag}."
        remedy = late.remedy(advice)
        return Headline(verdict=verdict, why=why, next=_next_of_late(late, remedy), rule=remedy.rule if remedy else "")
    whole = trust.level == "sound" and bool(answered) and not unanswered
    most, computing = greatest(found, measured.share("exposed_unsplit_ns")), measured.share("compute_ns")
    limit = most[0] if most else None
    verdict = most[0].said(most[1], computing) if most else _unlimited(advice, whole, computing, locating)
    queued = _slowed_by_profiler(measured) if limit is IDLE else None
    if queued is not None:
        expected = milliseconds(queued.length_ns)
        verdict = f"Launch-bound only while traced: without the profiler, expect a step of about {expected}."
        why += f" {sentence(by_profiler(queued))}"
    return Headline(
        verdict=verdict,
        why=why,
        next=_next(measured, advice, limit, whole, recorded) + _lacking(advice, limit, unanswered, skipped)
        if answered or unanswered
        else _SELECT,
        rule=advice[0].rule if advice else "",
    )


def _slowed_by_profiler(measured: Measured) -> QueuedSteps | None:
    """The steps that show that the profiler makes the device wait for launches, where that is most of its idle time."""
    idle = measured.known("launch_idle")
    mostly = measured.share("launch_idle_ns") >= measured.share("idle_ns") / 2
    return idle.known("queued") if idle is not None and mostly and measured.step.basis == "traced" else None


def _unjudgeable(findings: Sequence[Finding]) -> Headline:
    why = [one for one in findings if one.level == "unjudgeable"]
    remedy = next((_REMEDIES[one.code] for one in why if one.code in _REMEDIES), RECORD)
    broken = next((one for one in findings if one.code in _BROKEN_OFF), None)
    if broken is not None:
        said = "" if broken.text in why[0].text else f"{sentence(broken.text)} "
        remedy = f"{said}See to that first, then record again."
    return Headline(verdict="This run cannot be judged.", why=sentence(why[0].text), next=remedy)


def _why(measured: Measured) -> str:
    step = measured.step
    basis = "without the profiler" if step.basis == "unprofiled" else "traced"
    why = f"A step takes {milliseconds(step.median_ns)} ({basis}): {parts(measured)}."
    wait = measured.input.known("wait_share")
    if wait is not None and wait >= 0.05:
        told = f"the script waits for its data loader {percent(wait)} of the time"
        if measured.input.basis == "unprofiled":
            why += f" Without the profiler {told}; the other shares are of traced steps."
        else:
            why += f" {sentence(told)}"
    return why


def _unlimited(advice: Sequence[Advice], whole: bool, computing: float, locating: Collection[str]) -> str:
    found = [one for one in advice if one.impact != "low"]
    if advice and advice[0].rule in locating:
        return sentence(advice[0].title)
    if computing < NEARLY_ALL:
        spent = f"computing takes {percent(computing)} of each step, and no other cause stands out"
        return f"{'Mostly computing' if computing >= MOSTLY else 'No single bottleneck'}: {spent}."
    if any(one.kind == "time" for one in found):
        return "Compute-bound, and the computing can be made cheaper."
    if found:
        return "The device computes nearly all the time, but something else needs a look."
    if advice:
        return "The device computes nearly all the time: only small things were found."
    if whole:
        return "No bottleneck found: the device computes nearly all the time, and no rule found anything to change."
    return "Nothing was found, but not everything could be looked at."


def _next_of_late(late: Straggler, remedy: Advice | None) -> str:
    return _change(remedy) if remedy is not None else _look_at(late.figures)


def _look_at(late: StragglerFigures) -> str:
    named = next((one for one in late.differences if one.share >= LEAST_NAMED_SHARE), None)
    if named is None:
        return (
            f"Open the trace of rank {late.rank} in https://ui.perfetto.dev and compare a step with the same step of "
            "another rank."
        )
    if named.kind in ("host", "kernels", "copies"):
        return f"Find out why the {_SLOW[named.kind]} of rank {late.rank} is slower than on the other ranks."
    where = f" ({named.at})" if named.known("at") else ""
    return f"Find out what differs on rank {late.rank} in `{named.name}`{where}."


def _next(measured: Measured, advice: Sequence[Advice], limit: Limit | None, whole: bool, recorded: bool) -> str:
    last = measured.known("straggler")
    if advice:
        return _change(advice[0])
    if limit is not None and limit.class_ns == LATE.class_ns and last is not None:
        return _look_at(last)
    if limit is UNSPLIT:
        return "Read the traces of all ranks together: `dptune report` takes several files, or their folder."
    if not whole and not recorded:
        return "Record the run, so that every rule can look at it: `dptune profile train.py`."
    if limit:
        return "No rule has a remedy. Open the trace in https://ui.perfetto.dev and look at where the device waits."
    if not whole:
        return "Read below what could not be read or judged, and why."
    return "Nothing to change. Record again after the next change to the script."


def _lacking(
    advice: Sequence[Advice], limit: Limit | None, unanswered: Collection[str], skipped: Sequence[Skipped]
) -> str:
    """Of a step that something limits, of which only notes are said: what most rules lack that could not run."""
    if limit is None or not unanswered or not advice or advice[0].impact != "low":
        return ""
    (why, many), *_ = Counter(one.reason for one in skipped if one.rule in unanswered).most_common(1)
    return f" Of what limits the step {many} more {'rule' if many == 1 else 'rules'} might tell; lacking: {why}."


def _change(one: Advice) -> str:
    if not one.changes:
        return f"{sentence(one.title)} How: `dptune rules explain {one.rule}`."
    change = one.changes[0]
    use = f"In {change.at}, use" if change.at else "Use"
    first, more, _ = change.paste.partition("\n")
    what = f"`{first} ...` (all lines: see {one.rule})" if more else f"`{first}`"
    saves = ""
    if one.saves and one.saves.samples_times != 1:  # a step takes longer then
        saves = f" A sample then takes {percent(one.saves.low_share)} to {percent(one.saves.high_share)} less."
    elif one.saves and one.saves.basis == "bound":
        step = "each step" if one.saves.mean_step_ms is None else "the mean step"
        saves = f" It cannot save more than {digits(one.saves.high_ms)} ms of {step}."
    elif one.saves:
        saves = f" It saves {digits(one.saves.low_ms)} to {digits(one.saves.high_ms)} ms of each step."
    more_changes = len(one.changes) - 1
    beside = f", and {more_changes} more {'change' if more_changes == 1 else 'changes'}: see {one.rule}"
    learning = " What is learned may change." if one.numerics == "changes" else ""
    return f"{use} {what}{beside if more_changes else ''}.{saves}{learning}"


def sentence(text: str) -> str:
    """With a capital and a full stop; a file that it begins with keeps its name."""
    first = text.split(" ", 1)[0]
    begun = text if any(sign in first for sign in "._/") else f"{text[:1].upper()}{text[1:]}"
    return f"{begun}{'' if text.endswith('.') else '.'}"

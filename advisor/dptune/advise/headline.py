"""Verdict, why, next: three short sentences at the top of every report, for someone who has never read one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from dptune.advice import Advice, Change, Headline, Skipped, Trust
from dptune.advise import disturbance, physics
from dptune.advise.costliest import costliest_function, most_compute
from dptune.advise.limits import (
    BOUND_SHARE,
    COMMUNICATION,
    IDLE,
    INPUT,
    LATE,
    MOSTLY,
    MOSTLY_COMPUTE,
    NEARLY_ALL,
    NO_BOTTLENECK,
    UNSPLIT,
    Limit,
    greatest,
    idle_cause,
    milliseconds,
    of_step,
    parts,
    percent,
    shares,
)
from dptune.advise.saving import expected_saving
from dptune.advise.sentence import sentence
from dptune.advise.straggler import LEAST_NAMED_SHARE, LEAST_SHARE, Straggler, doubtful, straggler
from dptune.advise.trust import NO_VERDICT
from dptune.advise.unjudgeable import NO_DATA, UPDATE, recording, unjudgeable
from dptune.finding import SCHEMA_NEWER, Finding
from dptune.measured import Measured, Missing, QueuedSteps, StragglerFigures, by_profiler

_SELECT = "See which rules run by `dptune rules list`; `select` and `ignore` under [tool.dptune] decide it."

_RECORDING = "they need a recording by `dptune profile`"
_SLOW = {  # what is slower on a late rank -> what to compare with the other ranks
    "host": ("host", "CPU pinning and NUMA node, other processes, work that only this rank does"),
    "kernels": ("device", "clock, temperature, power limit, other processes"),
    "copies": ("link to the device", "PCIe slot and NUMA node, pinned memory"),
}
_SUBJECTS = {  # class of the account that limits a step -> how the names of the settings begin that lessen it
    INPUT.class_ns: ("loader.num_workers", "loader.persistent_workers", "loader.prefetch_factor"),
    COMMUNICATION.class_ns: ("ddp.", "fsdp."),
}


def headline(
    measured: Measured,
    trust: Trust,
    advice: Sequence[Advice],
    skipped: Sequence[Skipped],
    quiet: Sequence[str],
    recorded: bool,
    busy_ns: Mapping[int, float] | None = None,
    *,
    leads: bool = True,
    locating: Collection[str] = (),
) -> Headline:
    """What limits the step, the figures behind that, and the one thing to do next.

    `busy_ns` is what each rank does without the profiler while it waits for none, where that is known. `leads`: whether
    the straggler is the same rank in most steps, rather than one of several that take turns. `locating`: rules whose
    titles name a cost and its place in the script, which are the verdict where nothing else stands out.
    """
    if trust.level == "unjudgeable":
        return unjudgeable(trust.findings, advice)
    try:
        found = shares(measured)
        late = straggler(measured, busy_ns) if leads else None
        why = _why(measured)
    except Missing as missing:
        return Headline(
            label=NO_DATA,
            verdict=sentence(NO_VERDICT),
            why=sentence(missing.reason),
            next=recording(trust.findings),
        )
    step_ns = measured.step.known("time_ns")
    unsure = doubtful(measured, advice)
    first = next((item for item in advice if item not in unsure), None)
    heads = (
        late is not None
        and not unsure
        and late.share
        >= max(
            LEAST_SHARE,
            *(
                found[other_limit] - late.own.get(other_limit.class_ns, 0.0)
                for other_limit in found
                if other_limit is not LATE
            ),
        )
        and not _saves_more(first, late)
    )
    if late is not None:
        why += f" {late.why}" if heads else f" Also, rank {late.figures.rank} is a straggler, {late.lag}. {late.why}"
    if trust.level == "partial":
        lack = next(f for f in trust.findings if f.level == "partial")
        whole_run = lack.code in (physics.COLLECTIVES, physics.COPIES, disturbance.SHARED)
        why += f" {sentence(lack.text)}" if whole_run else f" Partial data: {lack.text}."
    answered = (
        {recommendation.rule for recommendation in advice}
        | set(quiet)
        | {skipped_rule.rule for skipped_rule in skipped if skipped_rule.set_aside}
    )
    unanswered = {skipped_rule.rule for skipped_rule in skipped} - answered
    needing = {skipped_rule.rule for skipped_rule in skipped if skipped_rule.needs} - answered
    why += _coverage(len(answered), len(unanswered - needing), len(needing))
    if first is not None and first.threatens_results:
        return Headline(
            label="Results at risk",
            verdict=sentence(first.title),
            why=why,
            next=_action(first, late, step_ns),
            rule=first.rule,
        )
    if first is not None and _are_slow_steps(measured, advice, found):
        verdict = f"Slow steps take {percent(measured.step.slow_share)} of the time: {_mean_and_median(measured)}."
        return Headline(
            label="Slow steps", verdict=verdict, why=why, next=_action(first, late, step_ns), rule=first.rule
        )
    if late is not None and heads:
        verdict = f"Straggler: rank {late.figures.rank} is {late.lag}."
        action = _look_at(late.figures) if first is None else _action(first, late, step_ns) + _of_late(late, advice)
        return Headline(
            label="Straggler",
            verdict=verdict,
            cause=late.why,
            why=why,
            next=action,
            rule=first.rule if first else "",
        )
    whole = trust.level == "sound" and bool(answered) and not unanswered
    most, computing = greatest(found, measured.step_share("exposed_unsplit_ns")), measured.step_share("compute_ns")
    limit = most[0] if most else None
    step = of_step(measured)
    if most:
        label, verdict = most[0].label(most[1], computing), most[0].text(most[1], computing, step)
    else:
        label, verdict = _unlimited(advice, whole, computing, locating, step)
    if limit is IDLE:
        verdict = f"{verdict.removesuffix('.')}{idle_cause(measured)}."
    queued = _slowed_by_profiler(measured) if limit is IDLE else None
    if queued is not None:
        expected = milliseconds(queued.length_ns)
        label = "Launch-bound only while traced"
        verdict = f"{label}: without the profiler, expect a step of about {expected}."
        why += f" {sentence(by_profiler(queued))}"
    if limit is UNSPLIT and first is not None and first.confidence == "low":
        first = None  # whether it applies is known only when the traces of all ranks are read
    return Headline(
        label=label,
        verdict=verdict,
        why=why,
        next=(
            _next(measured, limit, whole, recorded, trust.findings, names_rank=not unsure)
            if first is None
            else _action(first, late, step_ns)
        )
        + (_see_also(advice, limit) or _lacking(advice, limit, unanswered, skipped))
        if answered or unanswered
        else _SELECT,
        rule=first.rule if first else "",
    )


def _coverage(answered: int, could_not: int, needing: int) -> str:
    """How many rules could not run, and how many need a recording."""
    found = [f"{could_not} of {answered + could_not} rules could not run"] if could_not else []
    if needing:
        found.append(f"{needing} {'more need' if found else 'rules need'} a recording by `dptune profile`")
    if not answered and not found:
        return " No rules were selected."
    return f" {', '.join(found)}." if found else ""


def _are_slow_steps(measured: Measured, advice: Sequence[Advice], found: Mapping[Limit, float]) -> bool:
    """Whether slow steps, of which there is advice, take more of the time than anything does in the others."""
    if not any(
        recommendation.saves is not None and recommendation.saves.mean_step_ms is not None for recommendation in advice
    ):
        return False
    slow = measured.step.slow_share
    return slow >= BOUND_SHARE and slow > (1 - slow) * max(found.values(), default=0.0)


def _mean_and_median(measured: Measured) -> str:
    step = measured.step
    return f"the mean step takes {milliseconds(step.untraced_mean_ns)}, the median step {milliseconds(step.time_ns)}"


def _slowed_by_profiler(measured: Measured) -> QueuedSteps | None:
    """The steps that show that the profiler makes the device wait for launches, where that is most of its idle time."""
    idle = measured.known("launch_idle")
    mostly = measured.share("launch_idle_ns") >= measured.share("idle_ns") / 2
    return idle.known("queued") if idle is not None and mostly and measured.step.basis == "traced" else None


def _why(measured: Measured) -> str:
    step = measured.step
    takes = f"The {step.average} step takes {milliseconds(step.time_ns)}"
    if step.slow_share:
        takes = f"The median step takes {milliseconds(step.time_ns)}, the mean {milliseconds(step.untraced_mean_ns)}"
    why = f"{takes} ({step.basis}): {parts(measured)}."
    if step.slow_share:
        why += " These shares exclude slow steps."
    wait = measured.input.known("wait_share")
    if wait is not None and wait >= 0.05:
        wait_text = f"the script waits for its data loader {percent(wait)} of the time"
        if measured.input.basis == "untraced":
            on_cpu = measured.known("device_kind") in ("cpu", None)
            why += f" In untraced steps {wait_text}{'; the other shares are of traced steps' if on_cpu else ''}."
        else:
            why += f" {sentence(wait_text)}"
    return why


def _unlimited(
    advice: Sequence[Advice], whole: bool, computing: float, locating: Collection[str], step: str
) -> tuple[str, str]:
    """Label and verdict of a step that nothing but compute limits."""
    found = [
        recommendation
        for recommendation in advice
        if recommendation.impact != "low" and recommendation.confidence != "low"
    ]
    if advice and advice[0].rule in locating:
        return "Costly function", sentence(advice[0].title)
    if computing < NEARLY_ALL:
        spent = f"compute takes {percent(computing)} of {step}, and no other cause stands out"
        label = MOSTLY_COMPUTE if computing >= MOSTLY else NO_BOTTLENECK
        return label, f"{label}: {spent}."
    if any(recommendation.kind == "time" for recommendation in found):
        return "Compute-bound", "Compute-bound, and the compute can be made cheaper."
    if found:
        return (
            "Compute-bound",
            "The device computes nearly all the time, but there are findings on correctness or convergence.",
        )
    if advice:
        return (
            "Compute-bound",
            "The device computes nearly all the time: all findings have low impact or low confidence.",
        )
    if whole:
        return "Healthy", "No bottleneck found: the device computes nearly all the time, and no rule has a finding."
    spent = f"compute takes {percent(computing)} of {step}, and no rule that ran has a finding"
    return "No findings", f"No findings: {spent}."


def _saves_more(first: Advice | None, late: Straggler) -> bool:
    """Whether the first advice is on something else than the late rank and is expected to save more than its delays."""
    if first is None or first.saves is None or first.confidence == "low" or late.is_subject_of(first):
        return False
    return first.saves.expected_share > late.share


def _of_late(late: Straggler, advice: Sequence[Advice]) -> str:
    """Where a late rank heads the page and the first advice is on something else: what to do about the rank."""
    remedy = late.remedy(advice)
    if remedy is advice[0]:
        return ""
    return f" For rank {late.figures.rank}: {_look_at(late.figures) if remedy is None else f'see {remedy.rule}.'}"


def _look_at(late: StragglerFigures) -> str:
    named = next((difference for difference in late.differences if difference.share >= LEAST_NAMED_SHARE), None)
    if named is None:
        return (
            f"Open the trace of rank {late.rank} in https://ui.perfetto.dev and compare a step with the same step of "
            "another rank."
        )
    if named.kind in _SLOW:
        slow, compared = _SLOW[named.kind]
        return f"Compare the {slow} of rank {late.rank} with the others: {compared}."
    if named.kind == "gap":
        return f"Find out what rank {late.rank} does before `{named.short}`: Python, file I/O or sleeps."
    where = f" ({named.at})" if named.known("at") else ""
    return f"Find out what differs on rank {late.rank} in `{named.short}`{where}."


def _next(
    measured: Measured,
    limit: Limit | None,
    whole: bool,
    recorded: bool,
    findings: Sequence[Finding] = (),
    *,
    names_rank: bool = True,
) -> str:
    """What to do where there is no advice; `names_rank`: whether it may be to look at the straggler."""
    last = measured.known("straggler")
    if limit is not None and limit.class_ns == LATE.class_ns and last is not None and names_rank:
        return _look_at(last)
    if limit is UNSPLIT:
        return "Read the traces of all ranks together: `dptune report` takes several files, or their folder."
    if not whole and any(finding.code == SCHEMA_NEWER for finding in findings):
        return UPDATE
    if not whole and not recorded:
        return "Record the run, so that every rule can look at it: `dptune profile train.py`."
    if limit:
        return "No rule has a remedy. Open the trace in https://ui.perfetto.dev and look at where the device waits."
    if not whole:
        compute = most_compute(measured) or "Rules that could not run: `--section skipped`."
        return f"No change to recommend. {compute}"
    if costliest := costliest_function(measured):
        return f"No rule has a remedy. {costliest} Check whether every step needs it."
    return "Nothing to change. Record again after the next change to the script."


def _see_also(advice: Sequence[Advice], limit: Limit | None) -> str:
    """Where the first advice is on something else than what limits the step: the first that is on that."""
    names = _SUBJECTS.get(limit.class_ns, ()) if limit else ()
    on_it = (
        recommendation
        for recommendation in advice
        if any(subject.startswith(names) for subject in _subjects(recommendation))
    )
    found = next(on_it, None)
    if not names or found is None or found is advice[0]:
        return ""
    unsure = " (low confidence)" if found.confidence == "low" else ""
    return f" For what limits the step, see also {found.rule}{unsure}."


def _subjects(advice: Advice) -> list[str]:
    """The settings that it is on: those it changes, and the one that its fingerprint names where it changes none."""
    return [*(change.knob for change in advice.changes), advice.fingerprint.partition(":")[2]]


def _lacking(
    advice: Sequence[Advice], limit: Limit | None, unanswered: Collection[str], skipped: Sequence[Skipped]
) -> str:
    """Of a step that something limits, of which only notes are said: what most rules lack that could not run."""
    if limit is None or not unanswered or not advice or advice[0].impact != "low":
        return ""
    (why, many), *_ = Counter(
        _RECORDING if skipped_rule.needs else skipped_rule.reason
        for skipped_rule in skipped
        if skipped_rule.rule in unanswered
    ).most_common(1)
    what = "rule could explain this bottleneck but was" if many == 1 else "rules could explain this bottleneck but were"
    return f" {many} more {what} skipped: {why}."


def _action(advice: Advice, late: Straggler | None, step_ns: int | None) -> str:
    """What the advice is to do, with its rule; `late` is the rank that the others wait for, if there is one."""
    named = f"{advice.rule} (low confidence)" if advice.confidence == "low" else advice.rule
    if advice.threatens_results:
        return f"{named}: {advice.remedy or advice.watch} Details: `dptune rules explain {advice.rule}`."
    if advice.changes:
        return f"{named}: {_change(advice, step_ns)}"
    if advice.remedy:
        return f"{named}: {advice.remedy}"
    if late is not None and late.is_subject_of(advice) and not late.figures.does_more:
        return f"{named}: {_look_at(late.figures)}"
    return f"{named}: {sentence(advice.title)} How: `dptune rules explain {advice.rule}`."


def _change(advice: Advice, step_ns: int | None) -> str:
    change = advice.changes[0]
    use = f"In {change.at}, use" if change.at else "Use"
    first, more, _ = change.paste.partition("\n")
    what = f"`{first} ...` (all lines: see {advice.rule})" if more else f"`{first}`"
    saves = f" {expected_saving(advice, step_ns)}" if advice.saves else ""
    more_changes = sum(not _is_pasted(further, change) for further in advice.changes[1:])
    beside = f" (plus {more_changes} more {'change' if more_changes == 1 else 'changes'}: see {advice.rule})"
    learning = " May change training results." if advice.numerics == "changes" else ""
    return f"{use} {what}{beside if more_changes else ''}.{saves}{learning}"


def _is_pasted(change: Change, pasted: Change) -> bool:
    """Whether the lines to paste for one change make the other, too."""
    argument = f"{change.knob.rpartition('.')[2]}={change.then}"
    return change.at == pasted.at and re.search(rf"\b{re.escape(argument)}\b", pasted.paste) is not None

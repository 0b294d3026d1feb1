"""Whether a run can be judged at all, and what limits what may be said of it. Not a rule: it cannot be ignored.

A run is `unjudgeable` when no account of its steps can be made, or their times are other processes' doing; `partial`
when ranks or files are incomplete, else `sound`. What the profiler cost, how noisy the steps were and debug switches
left on are said beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import mean
from typing import Literal

from dptune.advice import Trust
from dptune.advise import disturbance, impossible, recording_limits
from dptune.advise.limits import milliseconds
from dptune.finding import Finding
from dptune.measured import CUT_SHORT, Measured, RankFigures, StepsFigures, by_profiler, in_ms
from dptune.rule import Rule
from dptune.runfile.exit_status import exit_text
from dptune.runfile.facts import Facts
from dptune.runfile.links import unmeasured
from dptune.runfile.record import LEAST_JUDGED_STEPS, RunRecord, Schedule
from dptune.trace.kineto.limitations import DAMAGED

ENOUGH_STEPS = 10  # of which one unusual step changes neither the median nor the quartiles by much
_NAMED = 8  # steps
_UNLIKE = 3  # times the shortest step that the longest takes: then a mean of both describes neither
NOISY_SHARE = 0.10  # a baseline whose quartiles lie further apart decides nothing about a change of 10 %

_LEFT_OUT = (
    *("collectives-differ", "sizes-differ", "group-too-large", "steps-not-shared", "work-outside-steps"),
    "clocks-apart",
)

_UNMARKED = {
    "optimizer": ("each runs from the end of one optimizer step to the end of the next", ""),
    "repeating": (
        "they are inferred from operations that repeat in the same order",
        ". The script's own step boundary is uncertain: call profiler.step(), or record with `dptune profile`",
    ),
}


_SEVERITY = ("unjudgeable", "partial", "info")


def judge(measured: Measured, facts: Sequence[Facts], found: Iterable[Finding] = ()) -> Trust:
    """The level and all findings by severity: those made while reading and measuring, then those of the figures."""
    findings = list(found)
    codes = {finding.code for finding in findings}
    if "ranks-sampled" in codes:
        codes.add("ranks-missing")  # the others are not missed
    if "device-unknown" in codes:
        codes.add("device-events-missing")  # they are there, and cannot be read
    damaged = any(finding.level == "unjudgeable" and finding.code in DAMAGED for finding in findings)
    if damaged or any(loss.fatal for rank in measured.ranks for loss in rank.losses):
        codes |= {"steps-missing", "steps-few", "steps-few-on-ranks", "device-events-missing"}  # the loss is why
    of_figures = (
        *(*_losses(measured), *_account(measured), *_steps(measured), *_ranks(measured), *_times(measured)),
        *recording_limits.limits(facts),
        *disturbance.findings(measured, facts),
        *impossible.findings(measured, facts),
    )
    findings += [finding for finding in of_figures if finding.code not in codes]  # the reader knows the details
    findings.sort(key=lambda finding: _SEVERITY.index(finding.level))
    levels = {finding.level for finding in findings}
    return Trust(
        level="unjudgeable" if "unjudgeable" in levels else "partial" if "partial" in levels else "sound",
        findings=list({(finding.code, finding.text): finding for finding in findings}.values()),
    )


def recording(record: RunRecord | None, facts: Sequence[Facts]) -> Iterator[Finding]:
    """What an early end of the script left out of a recording, and what ran beside it."""
    if record is not None and record.unrecorded:
        text = f"{', '.join(record.unrecorded)} trained in a process that was not recorded: no figure includes it"
        yield Finding(code="process-unrecorded", level="info", text=text)
    if record is not None and record.links_unmeasured:
        text = f"the links between ranks were not measured: {unmeasured(record.links_unmeasured)}"
        yield Finding(code="links-unmeasured", level="info", text=text)
    if record is None or (record.ending.how == "complete" and not facts):
        return
    status = "" if record.ending.exit_status is None else f" ({exit_text(record.ending.exit_status)})"
    if facts and all(rank.ended == "complete" for rank in facts):
        if record.ending.how == "recording":
            text = "the recording is complete; the script is still running, or its launcher was killed"
            yield Finding(code="script-running", level="info", text=text)
        elif record.ending.how != "complete":
            text = f"the script failed{status} after the recording was complete"
            yield Finding(code="script-failed", level="info", text=text)
        return
    for rank in facts:
        if rank.ended.startswith("recording stopped"):
            yield Finding(code="recording-stopped", level="partial", text=f"rank {rank.rank}: {rank.ended}")
            return
    for rank in facts:
        if rank.ended == "recording" and record.ending.how != "recording":
            text = f"rank {rank.rank} was killed or crashed: the window it was recording is lost"
            yield Finding(code="rank-killed", level="partial", text=text)
    made = max((rank.steps for rank in facts), default=0)
    how = {
        "complete": "ended on some ranks",
        "script-ended": "ended",
        "interrupted": "was interrupted",
        "timed-out": "was ended",
    }.get(record.ending.how, f"failed{status}")
    text = f"the script {how} after {made} of the {_needed(record.schedule)} optimizer steps a recording needs"
    text += f": {record.ending.note}" if record.ending.note else ""
    traced = any(window.name in ("light", "detailed") and window.trace for rank in facts for window in rank.windows)
    code = "recording-short" if record.ending.how in ("complete", "script-ended") else "recording-broken-off"
    yield Finding(code=code, level="partial" if traced else "unjudgeable", text=text)


NO_VERDICT = "not enough reliable data for a verdict"
# What makes the times of a run no basis for advice. Rules that read no times are asked all the same.
OF_TIMES = frozenset((disturbance.BUSY, disturbance.UNSTEADY, impossible.OPTIMIZER))
_OF_STEPS = frozenset(("steps-missing", "steps-few"))
PROFILER_CHEAP = "profiler-cheap"
_COSTLY = 1.1  # times an untraced step, that a traced one takes: from there on the overhead may change shares
_QUEUED_SHARE = 0.05  # of the time that a step computes: where that is off by less, nothing is said
_OF_FAMILIES = {impossible.COLLECTIVES: ("communication", "topology"), impossible.COPIES: ("input",)}


def only_times(trust: Trust) -> bool:
    """Whether a run cannot be judged because of its times alone."""
    return all(finding.code in OF_TIMES for finding in trust.findings if finding.level == "unjudgeable")


def why_not_asked(rule: Rule, trust: Trust, *, recorded: bool = True) -> str:
    """Why a rule cannot run on this recording; empty if it can. `asked_when_busy` rules need no reliable times.

    On traces that dptune did not record, rules that judge no times need no steps either.
    """
    if rule.kind != "time":
        needless = OF_TIMES if recorded and not rule.asked_without_steps else OF_TIMES | _OF_STEPS
        lacking = [finding for finding in trust.findings if finding.level == "unjudgeable"]
        return "" if all(finding.code in needless for finding in lacking) else _first(trust)
    if trust.level == "unjudgeable" and not (rule.asked_when_busy and only_times(trust)):
        return _first(trust)
    wrong = (finding for finding in trust.findings if rule.family in _OF_FAMILIES.get(finding.code, ()))
    return next((fault.text for fault in wrong), "")


def _first(trust: Trust) -> str:
    reason = next(finding.text for finding in trust.findings if finding.level == "unjudgeable")
    return f"{NO_VERDICT}: {reason}"


def _needed(schedule: Schedule) -> str:
    """How many steps a recording has: more where step times vary, if several ranks or GPUs run."""
    most = schedule.total_steps
    least = most - schedule.light_steps + schedule.light
    return str(most) if least == most else f"{least} to {most}"


def steady_steps(rank: RankFigures) -> int:
    """How many steady steps this rank's busiest device recorded."""
    return max((len(device.steps) for device in rank.devices), default=0)


def _losses(measured: Measured) -> Iterator[Finding]:
    """Events of the device that are lost or misdated, one finding of each kind: of the first rank, with the others."""
    found: dict[tuple[str, bool], list[tuple[int, str]]] = {}
    for rank in measured.ranks:
        for loss in rank.losses:
            found.setdefault((loss.code, loss.fatal), []).append((rank.rank, loss.text))
    for (code, fatal), lacking in found.items():
        rank_number, text = lacking[0]
        others = ", ".join(str(number) for number, _ in lacking[1:9]) + (", ..." if len(lacking) > 9 else "")
        also = f" (the same on rank {others})" if others else ""
        level: Literal["info", "partial", "unjudgeable"] = "partial" if code in _LEFT_OUT else "info"
        yield Finding(code=code, level="unjudgeable" if fatal else level, text=f"rank {rank_number}: {text}{also}")


def _recorded_steps(measured: Measured) -> dict[int, int]:
    """Steady steps by rank, with those in no figure that were cut short or complete no period."""
    steps = measured.known("steps")
    cut = min(1, len(steps.cut_short)) + len(steps.surplus) if steps else 0
    return {rank.rank: count + cut if (count := steady_steps(rank)) else 0 for rank in measured.ranks}


def _account(measured: Measured) -> Iterator[Finding]:
    steps = _recorded_steps(measured)
    most = max(steps.values(), default=0)
    if measured.ranks and not any(rank.source for rank in measured.ranks):
        yield _unjudgeable("steps-few", f"no step was traced; a verdict needs {LEAST_JUDGED_STEPS}")
    elif not any(device.device_operations for rank in measured.ranks for device in rank.devices):
        yield _unjudgeable("device-events-missing", "no device work was recorded, so step time cannot be broken down")
    elif measured.known("device_kind") in ("cuda", "rocm") and not any(
        device.kernels for rank in measured.ranks for device in rank.devices
    ):
        yield _unjudgeable("gpu-events-missing", "the run used GPUs, but the traces hold no GPU kernel")
    elif most == 0:
        why = f": {measured.missing['steps']}" if measured.known("steps") is None else ""
        yield _unjudgeable("steps-missing", f"no steps were found{why}")
    elif most < LEAST_JUDGED_STEPS:
        recorded = "step was recorded" if most == 1 else "steps were recorded"
        text = f"only {most} steady {recorded}; a verdict needs {LEAST_JUDGED_STEPS}"
        yield _unjudgeable("steps-few", text)
    elif measured.known("account") is None:
        yield _unjudgeable("account-missing", f"step time cannot be broken down: {measured.missing['account']}")
    elif measured.step.known("time_ns") is None:
        yield _unjudgeable("step-time-missing", f"no step time is known: {measured.step.missing['time_ns']}")
    broken = {rank.rank for rank in measured.ranks if rank.partial}  # said of the trace already
    short = [str(rank) for rank, count in steps.items() if count < LEAST_JUDGED_STEPS and rank not in broken]
    if short and most >= LEAST_JUDGED_STEPS:
        fewer = f"fewer than {LEAST_JUDGED_STEPS} steady steps on rank {', '.join(short)}"
        text = f"{fewer}; other ranks recorded up to {most}"
        yield Finding(code="steps-few-on-ranks", level="partial", text=text)


def _steps(measured: Measured) -> Iterator[Finding]:
    steps = measured.known("steps")
    if steps is None:
        return
    if steps.basis != "profiler_step":
        explanation, doubt = _UNMARKED[steps.basis]
        alike = f"{100 * steps.similarity:.0f} %"
        text = f"no ProfilerStep marks the steps: {explanation}; {alike} of their operations are the same{doubt}"
        yield Finding(code="steps-unmarked", level="info", text=text)
    if steps.without_work:
        some, their = ("step", "its") if steps.without_work == 1 else ("steps", "their")
        text = (
            f"{steps.without_work} traced {some} launched no device work; {their} time is attributed to the preceding "
            "step"
        )
        yield Finding(code="steps-without-work", level="info", text=text)
    if steps.cut_short:
        numbers = ", ".join(map(str, steps.cut_short))
        which = "of each rank " if len(steps.cut_short) > 1 else ""
        text = f"the last traced step {which}({numbers}) is excluded from all figures: {CUT_SHORT}"
        yield Finding(code="last-step-cut-short", level="info", text=text)
    if (longer := _longer_by_queue_ns(measured, steps)) is not None:
        text = (
            f"the first traced step starts with {milliseconds(steps.queued_before_ns)} of work that was queued before "
            f"it, which lengthens the mean step by up to {milliseconds(longer)}: record more steps"
        )
        yield Finding(code="work-queued-before", level="info", text=text)
    if steps.surplus:
        are, do = ("is", "it does") if len(steps.surplus) == 1 else ("are", "they do")
        text = (
            f"traced {_numbered(steps.surplus)} {are} excluded from all figures: steps alternate with a period of "
            f"{steps.period}, which {do} not complete"
        )
        yield Finding(code="steps-surplus", level="info", text=text)
    if steps.set_aside:
        yield Finding(code="steps-set-aside", level="info", text=_set_aside(measured, steps))


def _set_aside(measured: Measured, steps: StepsFigures) -> str:
    """Which steps took much longer, how long the longest took and why, and the mean step with them."""
    aside = steps.set_aside
    total = len(aside) + max(steps.by_rank.values(), default=0)
    longest = max(aside, key=lambda step: step.of_usual)
    several = len(aside) > 1
    which = f"{_numbered([step.number for step in aside])}; " if several else ""
    on = "" if longest.rank is None else f" on rank {longest.rank}"
    did = f", {longest.spent}" if longest.spent else ""
    text = (
        f"{len(aside)} of {total} traced steps {'are' if several else 'is'} excluded from all figures: {which}step "
        f"{longest.number} took {milliseconds(longest.length_ns)}{on} ({longest.of_usual:.1f} times the median){did}"
    )
    means_ns = [step.mean_ns for step in aside if not step.warm_up and step.mean_ns]
    if not means_ns or not any(device.steps for rank in measured.ranks for device in rank.devices):
        return text
    mean_ns, kept = measured.traced_step_ns, mean(steps.by_rank.values())
    with_them = (mean_ns * kept + sum(means_ns)) / (kept + len(means_ns))
    return (
        f"{text}; with {'them' if len(means_ns) > 1 else 'it'}, the mean traced step takes {milliseconds(with_them)} "
        f"instead of {milliseconds(mean_ns)}"
    )


def _numbered(steps: Sequence[int]) -> str:
    """The numbers of these steps, the first of many."""
    first = [str(number) for number in steps[:_NAMED]]
    if len(steps) > _NAMED:
        return f"steps {', '.join(first)} and {len(steps) - _NAMED} more"
    return f"step {first[0]}" if len(first) == 1 else f"steps {', '.join(first[:-1])} and {first[-1]}"


def _longer_by_queue_ns(measured: Measured, steps: StepsFigures) -> float | None:
    """What each traced step holds of work queued before all of them; None where its parts are hardly off by it."""
    account = measured.known("account")
    if account is None or not steps.by_rank:
        return None
    longer = steps.queued_before_ns / max(steps.by_rank.values())
    computing_ns = account.share("compute_ns") * (measured.step.known("time_ns") or 0)
    return longer if longer > _QUEUED_SHARE * computing_ns else None


def _ranks(measured: Measured) -> Iterator[Finding]:
    for rank in measured.ranks:
        if rank.partial:
            text = f"the trace of rank {rank.rank} ({rank.source}) breaks off {rank.partial}"
            yield Finding(code="trace-partial", level="partial", text=text)
    world = measured.known("world_size")
    if world is not None and len(measured.ranks) < world:
        text = f"{len(measured.ranks)} of {world} ranks were read; the others are unknown"
        yield Finding(code="ranks-missing", level="partial", text=text)


def _times(measured: Measured) -> Iterator[Finding]:
    step = measured.step
    untraced, light = step.known("untraced_median_ns"), step.known("light_median_ns")
    if untraced is None and light is None:
        return
    yield from _few(measured)
    if untraced is None:
        text = "times include profiler overhead (typically 1.1-1.8x); trust percentages more than milliseconds"
        yield Finding(code="times-traced", level="info", text=text)
        yield from _noisy(measured, "light")
        waited = measured.known("launch_idle")
        if waited is not None and (queued := waited.known("queued")) is not None:
            bound = f"{by_profiler(queued)}. Without the profiler, expect about {milliseconds(queued.length_ns)}"
            yield Finding(code="profiler-slows-launching", level="info", text=bound)
        return
    if light is not None:
        times = f"({milliseconds(light)}, {milliseconds(untraced)})"
        text = f"profiler overhead: traced steps took {light / untraced:.2f}x as long as untraced ones {times}: " + (
            "on a GPU the overhead is idle or waiting time, and is excluded"
            if measured.known("device_kind") not in ("cpu", None)
            else f"times are scaled to {'the median of all processes' if step.repeats_ns else 'the untraced step'}"
        )
        if light < untraced:
            text = f"profiler overhead is within the noise: traced steps were faster than untraced ones {times}"
        code = "profiler-cost" if light >= _COSTLY * untraced else PROFILER_CHEAP
        yield Finding(code=code, level="info", text=text)
    yield from _noisy(measured, "untraced")
    yield from _noisy(measured, "light")


def _noisy(measured: Measured, window: Literal["untraced", "light"]) -> Iterator[Finding]:
    """Steps of a window whose quartiles lie far apart: savings and shares are no surer than that."""
    step, steps = measured.step, measured.known("steps")
    low, middle, high = (step.known(f"{window}_{part}_ns") for part in ("q1", "median", "q3"))
    if low is None or middle is None or high is None or high - low <= NOISY_SHARE * middle:
        return
    share = f"{100 * (high - low) / middle:.0f} % of the median"
    if window == "light":
        if steps is not None and steps.groups:
            return  # they take turns, and differ by what they do
        lengths_ns = [step.account.window_ns for device in measured.ranks[0].devices for step in device.steps]
        if lengths_ns and max(lengths_ns) >= _UNLIKE * min(lengths_ns):
            between = f"{in_ms(min(lengths_ns))} to {milliseconds(max(lengths_ns))}"
            text = f"traced steps range from {between}: shares describe the mean, not any one step"
            yield Finding(code="steps-noisy", level="info", text=text)
            return
        spread = f"interquartile range {in_ms(low)}-{milliseconds(high)}, {share}"
        text = f"traced steps are noisy ({spread}): shares of a step are uncertain"
    elif step.untraced_period > 1:
        text = f"step times repeat every {step.untraced_period} steps: a pattern, not noise"
        yield Finding(code="steps-take-turns", level="info", text=text)
        return
    else:
        spread = f"interquartile range {in_ms(low)}-{milliseconds(high)}, {share}"
        text = f"step time is noisy ({spread}): savings smaller than that will not be visible"
    yield Finding(code="steps-noisy", level="info", text=text)


def _few(measured: Measured) -> Iterator[Finding]:
    """As few steps as a run can be judged by: one that is unusual changes the median and every share."""
    most = max(_recorded_steps(measured).values(), default=0)
    if most == LEAST_JUDGED_STEPS:
        traced = measured.step.basis == "traced"
        how = f"`active={ENOUGH_STEPS}` in torch.profiler's schedule" if traced else f"`--light {ENOUGH_STEPS}`"
        text = (
            f"only {most} traced steps were recorded, so one unusual step changes every figure: record at least "
            f"{ENOUGH_STEPS} ({how})"
        )
        yield Finding(code="steps-three", level="info", text=text)


def _unjudgeable(code: str, text: str) -> Finding:
    return Finding(code=code, level="unjudgeable", text=text)

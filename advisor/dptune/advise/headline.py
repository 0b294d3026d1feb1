"""Verdict, why, next: three short sentences at the top of every report, for someone who has never read one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from dptune.advice import Advice, Headline, Skipped, Trust
from dptune.advise import disturbance, impossible
from dptune.advise.late_places import look_at
from dptune.advise.limits import (
    BOUND_SHARE,
    IDLE,
    LATE,
    MOSTLY,
    MOSTLY_COMPUTE,
    NEARLY_ALL,
    NO_BOTTLENECK,
    UNSPLIT,
    Limit,
    greatest,
    idle_causes,
    milliseconds,
    of_step,
    parts,
    percent,
    shares,
)
from dptune.advise.next_step import about_straggler, advised, compare_ranks, lacking, see_also, unadvised
from dptune.advise.recording_again import recording
from dptune.advise.sentence import sentence
from dptune.advise.straggler import LEAST_SHARE, Straggler, doubtful, straggler
from dptune.advise.trust import NO_VERDICT
from dptune.advise.unjudgeable import NO_DATA, unjudgeable
from dptune.measure.device.phases import INFERENCE
from dptune.measured import Measured, Missing, QueuedSteps, by_profiler

_SELECT = "`dptune rules list` shows which rules run; `select` and `ignore` under [tool.dptune] choose them."


@dataclass(frozen=True)
class _Coverage:
    """Codes of rules: those that ran, those that could not, and of these the ones that need a recording."""

    answered: frozenset[str]
    unanswered: frozenset[str]
    needing: frozenset[str]

    @classmethod
    def of(cls, advice: Sequence[Advice], skipped: Sequence[Skipped], quiet: Sequence[str]) -> _Coverage:
        set_aside = (skip.rule for skip in skipped if skip.set_aside)
        answered = frozenset((*(recommendation.rule for recommendation in advice), *quiet, *set_aside))
        return cls(
            answered,
            frozenset(skip.rule for skip in skipped) - answered,
            frozenset(skip.rule for skip in skipped if skip.needs_recording) - answered,
        )

    @property
    def words(self) -> str:
        """How many rules ran, need a recording and could not run; empty if all ran."""
        ran, needing, could_not = len(self.answered), len(self.needing), len(self.unanswered - self.needing)
        if not self.unanswered:
            return "" if ran else "No rules were selected."
        words = [f"{ran} of {ran + needing + could_not} rules ran"]
        words += [f"{needing} need a recording by `dptune profile`"] if needing else []
        words += [f"{could_not} could not"] if could_not else []
        return f"{'; '.join(words)}."


@dataclass(frozen=True)
class _Case:
    """What a verdict rests on.

    `first` is the first recommendation that is not `doubtful`, `late` the straggler, if there is one; `limits` are the
    shares of what may limit the step, `coverage` is which rules ran.
    """

    measured: Measured
    trust: Trust
    advice: Sequence[Advice]
    skipped: Sequence[Skipped]
    limits: Mapping[Limit, float]
    late: Straggler | None
    doubtful: Collection[Advice]
    first: Advice | None
    coverage: _Coverage

    @property
    def rule(self) -> str:
        return self.first.rule if self.first else ""

    @property
    def action(self) -> str:
        """What the first recommendation is to do; empty if there is none."""
        return "" if self.first is None else advised(self.first, self.late, self.measured.step.known("time_ns"))

    @property
    def straggler(self) -> Straggler | None:
        """The straggler where it is the verdict: no other limit and no other recommendation outweighs its delays."""
        late = self.late
        if late is None or self.doubtful or _saves_more(self.first, late):
            return None
        others = [
            share - late.own.get(limit.class_ns, 0.0) for limit, share in self.limits.items() if limit is not LATE
        ]
        return late if late.share >= max(LEAST_SHARE, *others) else None


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
    sources: Sequence[str] = (),
) -> Headline:
    """What limits the step, the figures behind that, and the one thing to do next.

    `busy_ns` is what each rank does without the profiler while it waits for none, where that is known. `leads`: whether
    the straggler is the same rank in most steps, rather than one of several that take turns. `locating`: rules whose
    titles name a cost and its place in the script, which are the verdict where nothing else stands out. `sources`: the
    files that were read.
    """
    if trust.level == "unjudgeable":
        inference = measured.missing.get("phases") == INFERENCE
        return unjudgeable(trust.findings, advice, sources, inference=inference)
    try:
        limits, late, why = shares(measured), straggler(measured, busy_ns) if leads else None, _why(measured)
    except Missing as missing:
        return Headline(
            label=NO_DATA, verdict=sentence(NO_VERDICT), why=sentence(missing.reason), next=recording(trust.findings)
        )
    unsure = doubtful(measured, advice)
    first = next((recommendation for recommendation in advice if recommendation not in unsure), None)
    coverage = _Coverage.of(advice, skipped, quiet)
    case = _Case(measured, trust, advice, skipped, limits, late, unsure, first, coverage)
    why = " ".join(filter(None, (why, _of_late(case), _of_partial(trust), coverage.words)))
    if first is not None and first.threatens_results:
        return Headline(
            label="Results at risk", verdict=sentence(first.title), why=why, next=case.action, rule=case.rule
        )
    if first is not None and _are_slow_steps(measured, advice, limits):
        verdict = f"Slow steps take {percent(measured.step.slow_share)} of the time: {_mean_and_median(measured)}."
        return Headline(label="Slow steps", verdict=verdict, why=why, next=case.action, rule=case.rule)
    if case.straggler is not None:
        return _held_up(case, case.straggler, why)
    return _limited(case, why, recorded, locating)


def _of_late(case: _Case) -> str:
    """Of the straggler: why it is late, and where it is not the verdict that there is one."""
    late = case.late
    if late is None:
        return ""
    reason = late.why(case.advice)
    return reason if case.straggler else f"Also, rank {late.figures.rank} is a straggler, {late.lag}. {reason}"


def _of_partial(trust: Trust) -> str:
    """Of partial data: what is missing or wrong."""
    if trust.level != "partial":
        return ""
    lack = next(finding for finding in trust.findings if finding.level == "partial")
    whole_run = lack.code in (impossible.COLLECTIVES, impossible.COPIES, disturbance.SHARED)
    return sentence(lack.text) if whole_run else f"Partial data: {lack.text}."


def _held_up(case: _Case, late: Straggler, why: str) -> Headline:
    """The verdict on a run that waits for one rank."""
    action = f"{case.action}{about_straggler(late, case.advice)}" if case.first else compare_ranks(late.figures)
    verdict = f"Straggler: rank {late.figures.rank} is {late.lag}."
    return Headline(
        label="Straggler", verdict=verdict, cause=late.why(case.advice), why=why, next=action, rule=case.rule
    )


def _limited(case: _Case, why: str, recorded: bool, locating: Collection[str]) -> Headline:
    """The verdict on a run by what takes most of its step, or on one that nothing but compute limits."""
    measured, coverage = case.measured, case.coverage
    whole = case.trust.level == "sound" and bool(coverage.answered) and not coverage.unanswered
    computing, step = measured.step_share("compute_ns"), of_step(measured)
    limit, share = greatest(case.limits, measured.step_share("exposed_unsplit_ns")) or (None, 0.0)
    if limit is None:
        label, verdict = _unlimited(case.advice, whole, computing, locating, step)
    else:
        whole_share = measured.step_share("idle_ns") if limit is IDLE else share
        label, verdict = limit.label(share, computing), limit.text(whole_share, computing, step)
    if limit is IDLE:
        verdict = f"{verdict.removesuffix('.')}{idle_causes(measured)}."
        if (queued := _slowed_by_profiler(measured)) is not None:
            label = "Launch-bound only while traced"
            verdict = f"{label}: without the profiler, expect a step of about {milliseconds(queued.length_ns)}."
            why += f" {sentence(by_profiler(queued))}"
    if limit is UNSPLIT and case.first is not None and case.first.confidence == "low":
        case = replace(case, first=None)  # whether it applies is known only when the traces of all ranks are read
    other = unadvised(measured, limit, whole, recorded, case.trust.findings, names_rank=not case.doubtful)
    action = case.action or other
    if limit is UNSPLIT and case.first is not None and _is_less(case.first, share):
        action = f"{other} {case.action}"
    waits = limit is not None and limit.class_ns == LATE.class_ns
    rule = case.rule
    if waits and (case.late is None or case.doubtful) and (case.first is None or case.first.confidence == "low"):
        place = look_at(measured)
        if place and (leads := _on_latest(case)) is not None:
            place, rule = f"{leads.rule} (low confidence): {place}", leads.rule
        action = " ".join(filter(None, (place, case.action))) or action
    action += see_also(case.advice, limit) or lacking(case.advice, limit, coverage.unanswered, case.skipped)
    asked = coverage.answered or coverage.unanswered
    return Headline(label=label, verdict=verdict, why=why, next=action if asked else _SELECT, rule=rule)


def _is_less(advice: Advice, share: float) -> bool:
    """Whether the advice is expected to save less than this share of a step."""
    return advice.saves is None or advice.saves.expected_share < share


def _on_latest(case: _Case) -> Advice | None:
    """The doubtful finding on the straggler, where that is among the ranks of the latest place."""
    outliers, worst = case.measured.known("outliers"), case.measured.known("straggler")
    if outliers is None or not outliers.late or worst is None or worst.rank not in outliers.late[0].ranks:
        return None
    return next(iter(case.doubtful), None)


def _are_slow_steps(measured: Measured, advice: Sequence[Advice], found: Mapping[Limit, float]) -> bool:
    """Whether slow steps, of which there is advice, take more of the time than anything does in the others.

    Advice of low confidence does not count: a loop that collects experience every few steps has no slow steps.
    """
    if not any(
        recommendation.confidence != "low"
        and recommendation.saves is not None
        and recommendation.saves.mean_step_ms is not None
        for recommendation in advice
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
            "The device computes nearly all the time, but there are findings on risks or convergence.",
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

"""Figures of A against figures of B."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from dptune.compare import breakdown, categories, settings, traffic
from dptune.compare.result import Basis, Compared, ComparedRun, Condition, Pair, StragglerDifference, Verdict
from dptune.compare.sides import ReadRun, Sides
from dptune.compare.verdict import decide, undecided
from dptune.measured import Missing


def compare(sides: Sides) -> Compared:
    """B against A, whether or not they are comparable: where they are not, the verdict says so."""
    sides.check()
    basis = _basis(sides)
    conditions = sides.conditions()
    per_sample = all(run.measured.known("samples_per_step") for _, run in sides.runs)
    step = sides.pair(lambda run: run.step_ns(basis))
    time = sides.pair(lambda run: _time_ns(run, basis, per_sample))
    runs = [_run(side, run, basis, per_sample) for side, run in sides.runs]
    classes, no_classes = categories.categories(sides, basis)
    phases, no_phases = breakdown.phases(sides, basis)
    ranks, no_ranks = breakdown.ranks(sides, basis)
    facts, no_facts = settings.facts(sides)
    collectives, no_collectives = traffic.collectives(sides)
    copies, no_copies = traffic.copies(sides)
    straggler, no_straggler = _straggler(sides)
    ratio, no_ratio = _ratio(time)
    figures = {
        "ratio": (ratio, no_ratio),
        "categories": (classes, no_classes),
        "phases": (phases, no_phases),
        "ranks": (ranks, no_ranks),
        "collectives": (collectives, no_collectives),
        "copies": (copies, no_copies),
        "straggler": (straggler, no_straggler),
        "facts": (facts, no_facts),
    }
    return Compared.of(
        figures,
        objective="time per sample" if per_sample else "time per step",
        basis=basis,
        runs=runs,
        time_ns=time,
        step_ns=step,
        verdict=_verdict(sides, basis, conditions, time, runs),
        conditions=conditions,
        remarks=[*sides.remarks(), *categories.remarks(sides)],
        loader_wait_ns=sides.pair(lambda run: _loader_wait_ns(run, basis)),
    )


def _basis(sides: Sides) -> Basis:
    untraced = all(run.measured.step.known("untraced_median_ns") is not None for _, run in sides.runs)
    return "untraced" if untraced else "traced"


def _time_ns(run: ReadRun, basis: Basis, per_sample: bool) -> float:
    time_ns = run.step_ns(basis)
    if time_ns <= 0:
        raise Missing("a step takes no time")
    return time_ns / run.measured.samples_per_step if per_sample else time_ns


def _run(side: Literal["A", "B"], run: ReadRun, basis: Basis, per_sample: bool) -> ComparedRun:
    figures: dict[str, float] = {}
    missing: dict[str, str] = {}
    fault = run.fault(basis)
    try:
        figures = {"time_ns": _time_ns(run, basis, per_sample), "step_ns": run.step_ns(basis)}
    except Missing as hole:
        missing = {"time_ns": hole.reason, "step_ns": hole.reason}
    return ComparedRun(
        side=side,
        name=run.name,
        recorded=run.report.run.recorded or "",
        trust=run.report.trust.level,
        unjudged=fault.text if fault else "",
        remedy=run.report.headline.next if fault else "",
        samples_inferred=run.measured.samples_inferred,
        **figures,
        missing=missing,
    )


_NOT_IN_TURN = (
    "all or nearly all runs of one side were recorded before those of the other, so machine drift would look the same: "
    "record A and B in random order"
)


_OTHER_WAY = "but the medians of the sides differ in the other direction"


def _verdict(
    sides: Sides, basis: Basis, conditions: Sequence[Condition], time: Pair, runs: Sequence[ComparedRun]
) -> Verdict:
    apart = [condition.name for condition in conditions if condition.differs]
    if apart:
        return undecided(f"the runs differ in {', '.join(apart)}", "not comparable")
    if any(run.unjudged for run in runs):
        return undecided(_unjudged(sides, basis))
    if time.known("difference") is None:
        return undecided(f"a step time is missing: {time.missing['difference']}")
    if sides.one_after_the_other:
        return undecided(_NOT_IN_TURN)
    verdict = decide(*([run.time_ns for run in runs if run.side == side] for side in ("A", "B")))
    if verdict.outcome == ("worse" if time.difference < 0 else "better"):
        return verdict.model_copy(update={"outcome": "inconclusive", "reason": f"{verdict.reason}, {_OTHER_WAY}"})
    return verdict


def _unjudged(sides: Sides, basis: Basis) -> str:
    """Which runs are not reliable enough, once, with what is wrong: of runs with the same fault that of the first."""
    by_code: dict[str, list[tuple[str, str]]] = {}
    for side, run in sides.runs:
        fault = run.fault(basis)
        if fault:
            by_code.setdefault(fault.code, []).append((f"{run.name} ({side})", fault.text))
    groups = []
    for faults in by_code.values():
        names, texts = zip(*faults, strict=True)
        similar = f" (as in {names[0]}; the others are similar)" if len(set(texts)) > 1 else ""
        groups.append(f"{', '.join(names)}: {texts[0]}{similar}")
    return f"not reliable enough: {'; '.join(groups)}"


def _ratio(time: Pair) -> tuple[float | None, str]:
    if time.known("difference") is None:
        return None, time.missing["difference"]
    return time.b / time.a, ""


def _loader_wait_ns(run: ReadRun, basis: Basis) -> float:
    wait = run.measured.input
    if wait.known("wait_ns") is not None and wait.basis != basis:
        raise Missing(f"its wait was measured in {wait.basis} steps, the comparison in {basis} ones")
    if basis == "traced":
        return wait.wait_share * run.step_ns(basis)
    return wait.wait_ns * run.step_ns(basis) / run.measured.step.untraced_median_ns  # at the level of all processes


def _straggler(sides: Sides) -> tuple[StragglerDifference | None, str]:
    try:
        ranks = [[run.measured.straggler.rank for run in runs] for runs in (sides.a, sides.b)]
    except Missing as missing:
        return None, missing.reason
    return StragglerDifference(
        a_ranks=ranks[0],
        b_ranks=ranks[1],
        lag_ns=sides.pair(lambda run: run.measured.straggler.lag_ns),
        waiting_share=sides.pair(lambda run: run.measured.straggler.waiting_share),
    ), ""

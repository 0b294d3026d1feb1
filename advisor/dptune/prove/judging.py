"""Trials -> what they say: the times that count, the looks that were due, and the proof as it stands."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Sequence
from math import isclose
from statistics import median
from typing import Literal

from dptune import __version__
from dptune.prove import sequential
from dptune.prove.numerics import learning
from dptune.prove.result import PAIRED, Ended, Look, Proof, SideName, Trial, pairs
from dptune.prove.sequential import Times
from dptune.prove.task import Task
from dptune.runfile.window import MOST_TAKEN

Objective = Literal["time per sample", "time per step"]
_SIDES: tuple[SideName, ...] = ("A", "B")
ONE_BATCH = "the batch size is known for one side only, so time per sample cannot be compared"


def objective(trials: Sequence[Trial]) -> Objective | None:
    """What both sides can be compared by; None where the batch of one is known and that of the other is not."""
    known = {trial.side for trial in trials if trial.status == "ran" and trial.known("samples_per_step")}
    ran = {timed.side for timed in trials if timed.status == "ran"}
    if known == ran:
        return "time per sample" if known else "time per step"
    return None if known else "time per step"


def incomparable(trials: Sequence[Trial]) -> str:
    """Why the sides cannot be compared; empty where they can, or where one of them has not run yet."""
    if objective(trials) is None:
        return ONE_BATCH
    by_side = {side: ran(trials, side) for side in _SIDES}
    early = {side: [trial for trial in by_side[side] if trial.ended_early] for side in _SIDES}
    most = {side: 2 * len(early[side]) > len(by_side[side]) for side in _SIDES}
    if not all(by_side.values()) or most["A"] == most["B"]:
        return ""
    short: SideName = "A" if most["A"] else "B"
    steps = f"{median(trial.steps for trial in early[short]):g}"
    return (
        f"the script of {short} ends after {steps} timed steps, fewer than requested, while the other continues: "
        f"request fewer (--steps {steps})"
    )


def ran(trials: Sequence[Trial], side: SideName) -> list[Trial]:
    """The trials of a side that were timed."""
    return [trial for trial in trials if trial.status == "ran" and trial.side == side]


def times(trials: Sequence[Trial]) -> tuple[list[Times], list[Times]]:
    """Of A and of B in the pairs that count, ns. Where a batch was not seen it is that of the side's others."""
    counted = pairs(trials)
    if objective(trials) != "time per sample":
        return [_time(a, 1.0) for a, _ in counted], [_time(b, 1.0) for _, b in counted]
    usual = {
        side: median(trial.samples_per_step for trial in _seen(trials, side)) for side in _SIDES if _seen(trials, side)
    }
    return (
        [_time(a, a.known("samples_per_step") or usual["A"]) for a, _ in counted],
        [_time(b, b.known("samples_per_step") or usual["B"]) for _, b in counted],
    )


def _seen(trials: Sequence[Trial], side: SideName) -> list[Trial]:
    return [trial for trial in ran(trials, side) if trial.known("samples_per_step")]


def _time(trial: Trial, samples: float) -> Times:
    return Times(trial.step_ns / samples, trial.fast_step_ns / samples)


def looks(trials: Sequence[Trial], level: float = sequential.LEVEL_OF_A_TEST) -> list[Look]:
    """Every look that was due so far."""
    if objective(trials) is None:
        return []
    a, b = times(trials)
    found = [sequential.look(a[:n], b[:n], level) for n in sequential.LOOKS if n <= len(a)]
    return [look for look in found if look is not None]


def at_most(trials: Sequence[Trial]) -> float | None:
    """B / A of which more is excluded, by the last look that was due; None before the first."""
    seen = looks(trials)
    if not seen:
        return None
    a, b = times(trials)
    return sequential.at_most(a[: seen[-1].runs], b[: seen[-1].runs])


def proof(task: Task, trials: Sequence[Trial], ended: Ended) -> Proof:
    """The proof as it stands."""
    by, counted = objective(trials), pairs(trials)
    a, b = times(trials)
    seen = looks(trials)
    last = seen[-1] if seen else None
    why_not = incomparable(trials)
    comparable = bool(counted) and not why_not
    figures = {
        "a_ns": median(trial_times.mean for trial_times in a) if a else None,
        "b_ns": median(trial_times.mean for trial_times in b) if b else None,
        "a_step_ns": median(trial.step_ns for trial, _ in counted) if counted else None,
        "b_step_ns": median(trial.step_ns for _, trial in counted) if counted else None,
        "ratio": sequential.times_as_long(*_of(a, b, "mean")) if comparable else None,
        "fast_ratio": sequential.times_as_long(*_of(a, b, "fast")) if comparable else None,
    }
    why = why_not or "too few trials ran"
    decided_by = sequential.decides(last) if last and ended == "decided" else ""
    return Proof(
        dptune=__version__,
        machine=machine(),
        a=task.a,
        b=task.b,
        advice=task.advice,
        command=task.command,
        written_since=task.written_since,
        objective=by or "time per step",
        trials=list(trials),
        looks=seen,
        warmup=task.bounds.warmup,
        steps=task.bounds.steps,
        least_s=task.bounds.least_s,
        outcome=_outcome(last, decided_by),
        decided_by=decided_by,
        reason=_reason(ended, last, trials, task),
        ended=ended,
        level=sequential.LEVEL,
        learning=learning(trials, task.numerics),
        **figures,
        missing={name: why for name, value in figures.items() if value is None},
    )


def _of(a: Sequence[Times], b: Sequence[Times], which: Literal["mean", "fast"]) -> tuple[list[float], list[float]]:
    return [getattr(trial_times, which) for trial_times in a], [getattr(trial_times, which) for trial_times in b]


def _outcome(last: Look | None, decided_by: str) -> Literal["better", "worse", "inconclusive"]:
    if last is None or not decided_by:
        return "inconclusive"
    return "better" if (last.ratio if decided_by == "mean" else last.fast_ratio) < 1 else "worse"


_STOPPED = {
    "out of time": "out of time: ",
    "under way": "unfinished: ",
    "interrupted": "interrupted: ",
}


def is_changed_already(task: Task, trial: Trial) -> bool:
    """Whether side A ran with the whole change: the script was patched after it was recorded."""
    return trial.side == "A" and bool(task.changed) and task.changed <= set(trial.has_change)


def _reason(ended: Ended, last: Look | None, trials: Sequence[Trial], task: Task) -> str:
    failed = "".join(f"; {words}" for words in failures(trials))
    if ended == "cannot run":
        side: SideName = "A" if not ran(trials, "A") else "B"
        first = next(trial for trial in trials if trial.side == side and trial.status != "ran")
        what = task.side(side).name
        return f"side {side} ({what}) cannot run: {first.status}: {first.note}{_elsewhere(task, side)}"
    if ended == "without effect" and is_changed_already(task, trials[-1]):
        return "the script has this change already, so both sides are the same"
    if ended == "without effect":
        why_not = "; ".join(f"{name}: {why}" for name, why in trials[-1].without_effect.items())
        some = (
            "the change took effect only in part"
            if task.changed - trials[-1].in_vain
            else "the change did not take effect"
        )
        return f"{some}: {why_not}"
    if ended == "not comparable":
        return incomparable(trials)
    if last is None:
        many = len(pairs(trials))
        stopped = _STOPPED.get(ended, "")
        few = "1 trial per side is too few" if many == 1 else f"{many} trials per side are too few"
        return f"{stopped}{few} to decide{failed}"
    by = sequential.decides(last)
    p_value = last.fast_p_value if by == "fast" else last.p_value
    made = f"{last.runs} {'trials per side' if last.runs < PAIRED else 'pairs of trials'}"
    chance = f"p = {p_value:.2g} over {made}"
    why = {
        "decided": f"{'by their fast steps ' if by == 'fast' else ''}the sides differ significantly ({chance})",
        "hopeless": "stopped for futility: the sides overlap so much that more trials are unlikely to decide",
        "out of time": f"out of time before a verdict ({chance})",
        "under way": f"unfinished, no verdict yet ({chance})",
        "interrupted": f"interrupted before a verdict ({chance})",
        "all trials made": f"no significant difference ({chance})",
        "excluded": f"a slowdown of {100 * (task.limit or 0.0):g} % is excluded",
        "narrow": f"no significant difference, known to within {100 * (task.within or 0.0):g} % ({chance})",
    }[ended]
    return f"{why}{failed}"


def _elsewhere(task: Task, side: SideName) -> str:
    """How it may run, where what was recorded does not run in a copy."""
    if not task.recorded or task.sources[side] is None or side != "A":
        return ""
    return "; the recording ran, so the copy may lack files the script reads: try --here (no copy)"


def consistent(proof: Proof) -> bool:
    """Whether its figures are those of its trials: another hand may have written it."""
    trials, level = proof.trials, proof.looks[0].level if proof.looks else sequential.LEVEL_OF_A_TEST
    if level not in sequential.LEVELS_OF_TESTS:
        return False
    seen = looks(trials, level)
    if [trial.number for trial in trials] != [*range(1, len(trials) + 1)] or len(seen) != len(proof.looks):
        return False
    if any(candidate.set_aside and not disturbed(candidate) for candidate in trials):
        return False
    a, b = times(trials)
    comparable = bool(a) and not incomparable(trials)
    figures = [(proof.known("ratio"), sequential.times_as_long(*_of(a, b, "mean")) if comparable else None)]
    figures += [(proof.known("fast_ratio"), sequential.times_as_long(*_of(a, b, "fast")) if comparable else None)]
    for look, other in zip(proof.looks, seen, strict=True):
        figures += zip(look.model_dump().values(), other.model_dump().values(), strict=True)
    if not all(x == y if x is None or y is None else isclose(x, y, rel_tol=1e-6) for x, y in figures):
        return False
    by = sequential.decides(seen[-1]) if seen and proof.ended == "decided" else ""
    return (proof.decided_by, proof.outcome) == (by, _outcome(seen[-1] if seen else None, by))


def disturbed(trial: Trial) -> bool:
    """Whether it was timed, on cores that were others' for so much of the time that it measures those, too."""
    return trial.status == "ran" and trial.taken_share > MOST_TAKEN


def failures(trials: Sequence[Trial]) -> list[str]:
    """What trials came to that did not run, in words."""
    made = Counter(trial.side for trial in trials)
    failed = Counter((failing.side, failing.status) for failing in trials if failing.status != "ran")
    return [f"{count} of {made[side]} {side} trials failed: {status}" for (side, status), count in failed.items()]


def machine() -> str:
    """Where trials are comparable: the host, its cores and its processor."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{platform.node()}, {usable} cores, {platform.machine()}"

"""Runs trials of both sides in turn until the verdict is clear, hopeless, or there is no more time."""

from __future__ import annotations

import os
import platform
import shutil
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Literal

from dptune import __version__
from dptune.capture.launch import Launch
from dptune.errors import RunError
from dptune.knobs import Value
from dptune.proof import Look, Proof, Side, SideName, Trial
from dptune.prove import order, scratch, sequential, trial
from dptune.prove.learning import learning
from dptune.prove.sequential import Times
from dptune.prove.trial import Bounds

Ended = Literal["decided", "hopeless", "all trials made", "out of time", "interrupted", "cannot run"]
PROOF = "proof.json"
_LEAST_FAILED = 2  # trials of one side that must fail before any of it ran: it cannot run


@dataclass(frozen=True)
class Task:
    """What to prove: how each side is started and set, and from which folder it is copied (None: it runs where it is).

    `a` and `b` say what they are, without secrets.
    """

    a: Side
    b: Side
    launches: dict[SideName, Launch]
    settings: dict[SideName, dict[str, Value]]
    sources: dict[SideName, Path | None]
    numerics: Literal["same", "changes"] = "same"
    advice: str = ""
    bounds: Bounds = field(default_factory=Bounds)
    budget_s: float = 1800.0
    most: int = sequential.LOOKS[-1]

    def side(self, name: SideName) -> Side:
        """One side."""
        return self.a if name == "A" else self.b


Told = Callable[[Proof, str], None]


def prove(task: Task, folder: Path, told: Told = lambda proof, what: None) -> Proof:
    """Run what is missing of the trials in `folder`, and decide. It resumes what was interrupted there.

    `told` hears the proof so far and what happens next, before each trial and at the end.
    """
    folder.mkdir(parents=True, exist_ok=True)
    trials = _known(task, folder)
    began = time.monotonic() - sum(one.seconds for one in trials)
    upcoming = order.following(_seed(task), trials)
    while (ended := _over(task, trials, time.monotonic() - began)) is None:
        number, side = len(trials) + 1, next(upcoming)
        told(_proof(task, trials, "interrupted"), f"trial {number}: {task.side(side).name}")
        done = _run(task, side, number, folder)
        if done.status == "interrupted":
            ended = "interrupted"
            break
        trials.append(done)
        _write(folder, _proof(task, trials, "interrupted"))
    proof = _proof(task, trials, ended)
    _write(folder, proof)
    told(proof, "")
    return proof


def read(path: Path) -> Proof:
    """A proof that was written. Raises RunError where there is none that can be read."""
    try:
        return Proof.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path} holds no proof that can be read: {str(error).splitlines()[0]}") from None


def _known(task: Task, folder: Path) -> list[Trial]:
    """The trials that were made before of the very same sides."""
    path = folder / PROOF
    if not path.exists():
        return []
    before = read(path)
    made = (before.a, before.b, before.machine, before.warmup, before.steps, before.least_s)
    bounds = task.bounds
    if made != (task.a, task.b, machine(), bounds.warmup, bounds.steps, bounds.least_s):
        raise RunError(
            f"{folder} holds trials of something else, of other steps, or of another machine",
            "name another folder, or remove it to begin anew",
        )
    return before.trials


def _run(task: Task, side: SideName, number: int, folder: Path) -> Trial:
    own = folder / f"trial-{number:03d}-{side}"
    shutil.rmtree(own, ignore_errors=True)  # of a trial that was cut off
    source = task.sources[side]
    copy = None if source is None else scratch.make(source, folder / "scratch")
    try:
        cwd = copy.path if copy else None
        made = trial.run(task.launches[side], side, number, task.settings[side], task.bounds, own, cwd)
        changed = [str(path) for path in copy.written_over()] if copy else []
        return made.model_copy(update={"written_over": changed})
    finally:
        if copy is not None:
            shutil.rmtree(copy.path, ignore_errors=True)


def _over(task: Task, trials: Sequence[Trial], spent_s: float) -> Ended | None:
    a, b = objective(trials, "A"), objective(trials, "B")
    for side in ("A", "B"):
        failed = [one for one in trials if one.side == side and one.status != "ran"]
        if not objective(trials, side) and len(failed) >= _LEAST_FAILED:
            return "cannot run"
    for seen in _looks(trials):
        if sequential.decides(seen):
            return "decided"
    last = sequential.look(a, b)
    if last is not None and sequential.hopeless(last, a, b):
        return "hopeless"
    if min(len(a), len(b)) >= task.most or len(trials) >= 2 * task.most + 2 * _LEAST_FAILED:
        return "all trials made"
    if spent_s + _longest_s(trials) > task.budget_s:
        return "out of time"
    return None


def _longest_s(trials: Sequence[Trial]) -> float:
    return max((one.seconds for one in trials), default=0.0)


def objective(trials: Sequence[Trial], side: SideName) -> list[Times]:
    """The times of each trial of a side that ran, ns: per sample where all of both sides tell it, else per step."""
    ran = [one for one in trials if one.status == "ran"]
    per_sample = all(one.known("samples_per_step") for one in ran)
    samples = [one.samples_per_step if per_sample else 1 for one in ran]
    return [
        Times(one.step_ns / n, one.fast_step_ns / n) for one, n in zip(ran, samples, strict=True) if one.side == side
    ]


def _looks(trials: Sequence[Trial]) -> list[Look]:
    """Every look that was due so far."""
    a, b = objective(trials, "A"), objective(trials, "B")
    found = [sequential.look(a[:n], b[:n]) for n in sequential.LOOKS if n <= min(len(a), len(b))]
    return [one for one in found if one is not None]


def _proof(task: Task, trials: Sequence[Trial], ended: Ended) -> Proof:
    ran = [one for one in trials if one.status == "ran"]
    per_sample = bool(ran) and all(one.known("samples_per_step") for one in ran)
    looks = _looks(trials)
    a, b = ([one.median for one in objective(trials, side)] for side in ("A", "B"))
    step = {side: [one.step_ns for one in ran if one.side == side] for side in ("A", "B")}
    figures = {
        "a_ns": median(a) if a else None,
        "b_ns": median(b) if b else None,
        "a_step_ns": median(step["A"]) if step["A"] else None,
        "b_step_ns": median(step["B"]) if step["B"] else None,
        **_ratios("", a, b),
        **_ratios("fast_", *([one.fast for one in objective(trials, side)] for side in ("A", "B"))),
    }
    few = "too few trials ran"
    by = sequential.decides(looks[-1]) if ended == "decided" else ""
    return Proof(
        dptune=__version__,
        machine=machine(),
        a=task.a,
        b=task.b,
        advice=task.advice,
        objective="time per sample" if per_sample else "time per step",
        trials=list(trials),
        looks=looks,
        warmup=task.bounds.warmup,
        steps=task.bounds.steps,
        least_s=task.bounds.least_s,
        outcome=("better" if looks[-1].ratio < 1 else "worse") if by else "inconclusive",
        decided_by=by,
        reason=_reason(ended, looks, trials, task),
        ended=ended,
        level=sequential.LEVEL,
        learning=learning(trials, task.numerics),
        **figures,
        missing={name: few for name, value in figures.items() if value is None},
    )


def _ratios(name: str, a: Sequence[float], b: Sequence[float]) -> dict[str, float | None]:
    """B / A with its interval, under the names of a proof's figures."""
    between = sequential.interval(a, b) if a and b else None
    low, high = between or (None, None)
    ratio = median([one / other for one in b for other in a]) if a and b else None
    return {f"{name}ratio": ratio, f"{name}low_ratio": low, f"{name}high_ratio": high}


def _reason(ended: Ended, looks: Sequence[Look], trials: Sequence[Trial], task: Task) -> str:
    if ended == "cannot run":
        side: SideName = "A" if not objective(trials, "A") else "B"
        failed = next(one for one in trials if one.side == side and one.status != "ran")
        what = task.side(side).name
        return f"{what if side == 'A' else f'with {what}'} it cannot run: {failed.status}: {failed.note}"
    if not looks:
        return f"{min(len(objective(trials, side)) for side in ('A', 'B'))} trials a side are too few to decide"
    last = looks[-1]
    p_value = min(last.p_value, last.fast_p_value)
    chance = f"chance alone separates {last.runs} trials a side like that in {100 * p_value:.3g} % of cases"
    steps = {"fast": "by their faster steps ", "median": "", "": ""}[sequential.decides(last)]
    why = {
        "decided": f"{steps}the trials lie apart: {chance}",
        "hopeless": "the trials lie among each other so evenly that more of them would hardly tell",
        "out of time": f"the time was up before it was clear: {chance}",
        "interrupted": f"it was interrupted: {chance}",
        "all trials made": f"the trials lie among each other: {chance}",
    }
    return why[ended]


def machine() -> str:
    """Where trials are comparable: the host, its cores and its processor."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{platform.node()}, {usable} cores, {platform.machine()}"


def _seed(task: Task) -> int:
    return zlib.crc32(f"{task.a.model_dump_json()}{task.b.model_dump_json()}".encode())


def _write(folder: Path, proof: Proof) -> None:
    temporary = folder / f"{PROOF}.part"
    temporary.write_text(proof.model_dump_json(indent=1) + "\n", encoding="utf-8")
    temporary.replace(folder / PROOF)

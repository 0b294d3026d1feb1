"""Runs trials of both sides in turn until the verdict is clear, hopeless, or there is no more time."""

from __future__ import annotations

import shutil
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from dptune.errors import RunError
from dptune.proof import Ended, Proof, SideName, Trial
from dptune.prove import folder as folders
from dptune.prove import judging, order, scratch, sequential, trial
from dptune.prove.task import Task

_LEAST_FAILED = 2  # trials of one side that must fail before any of it ran: it cannot run
_LEAST_S = 30.0  # that a first step may take, however little time is left
_ENDED_WELL = ("decided", "hopeless", "all trials made", "out of time", "interrupted")

Told = Callable[[Proof, str], None]


def prove(task: Task, folder: Path, told: Told = lambda proof, what: None) -> Proof:
    """Run what is missing of the trials in `folder`, and decide. It goes on with what was interrupted there.

    `told` hears the proof so far and what happens next, before each trial and at the end.
    """
    with folders.alone(folder):
        trials, what = _known(task, folder)
        if what:
            told(judging.proof(task, trials, "interrupted"), what)
        began = time.monotonic() - sum(one.seconds for one in trials)
        upcoming = order.following(_seed(task), trials)
        while (ended := _over(task, trials, time.monotonic() - began)) is None:
            number, side = len(trials) + 1, next(upcoming)
            told(judging.proof(task, trials, "interrupted"), f"trial {number}: {task.side(side).name}")
            done = _run(task, side, number, folder, task.budget_s - (time.monotonic() - began))
            if done.status == "interrupted":
                ended = "interrupted"
                break
            trials.append(done)
            folders.write(folder, judging.proof(task, trials, "interrupted"))
        proof = judging.proof(task, trials, ended)
        folders.write(folder, proof)
        told(proof, "")
        return proof


def _known(task: Task, folder: Path) -> tuple[list[Trial], str]:
    """The trials that were made before of the very same sides, and a word on them; others are set aside."""
    path = folder / folders.PROOF
    if not path.exists():
        return [], ""
    try:
        before = folders.read(path)
    except RunError:
        return [], f"what lay there cannot be read, and is kept in {folders.set_aside(folder)}"
    bounds = task.bounds
    made = (before.a, before.b, before.machine, before.warmup, before.steps, before.least_s)
    same = made == (task.a, task.b, judging.machine(), bounds.warmup, bounds.steps, bounds.least_s)
    if not same or before.ended not in _ENDED_WELL:
        other = "could not be run" if same else "were of other code, other steps or another machine"
        aside = folders.set_aside(folder)
        return [], f"begun anew: trials made before ({len(before.trials)}) {other}; they are kept in {aside}"
    if not before.trials:
        return [], ""
    return before.trials, f"trials taken over: {len(before.trials)}, the last of {before.trials[-1].began}"


def _run(task: Task, side: SideName, number: int, folder: Path, left_s: float) -> Trial:
    own, place = folder / f"trial-{number:03d}-{side}", folder / "scratch"
    _cleared(own)  # of a trial that was cut off
    bounds = replace(task.bounds, first_step_s=min(task.bounds.first_step_s, max(left_s, _LEAST_S)))
    source = task.sources[side]
    try:
        copy = None if source is None else scratch.make(source, place)
        cwd = copy.path if copy else None
        made = trial.run(task.launches[side], side, number, task.settings[side], bounds, own, cwd, folders.mark(folder))
        if copy is None:
            return made
        changed = {str(path): why for path, why in copy.written_over().items()}
        lacking = {str(path): why for path, why in islice(sorted(copy.left_out.items()), scratch.MOST_NAMED)}
        return made.model_copy(update={"written_over": changed, "not_copied": lacking})
    finally:
        scratch.clear(place)


def _cleared(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place, ignore_errors=True)
    else:
        place.unlink(missing_ok=True)


def _over(task: Task, trials: Sequence[Trial], spent_s: float) -> Ended | None:
    ran = {side: len(judging.ran(trials, side)) for side in ("A", "B")}
    for side, count in ran.items():
        if not count and sum(one.side == side for one in trials) >= _LEAST_FAILED:
            return "cannot run"
    if task.changed and any(task.changed <= one.in_vain for one in trials if one.side == "B" and one.status == "ran"):
        return "without effect"
    if all(ran.values()) and judging.objective(trials) is None:
        return "not comparable"
    if any(sequential.decides(seen) for seen in judging.looks(trials)):
        return "decided"
    a, b = judging.times(trials)
    last = sequential.look(a, b)
    if last is not None and sequential.hopeless(last, a, b):
        return "hopeless"
    if len(a) >= task.most or len(trials) >= 2 * task.most + 2 * _LEAST_FAILED:
        return "all trials made"
    if spent_s + max((one.seconds for one in trials), default=0.0) > task.budget_s:
        return "out of time"
    return None


def _seed(task: Task) -> int:
    return zlib.crc32(f"{task.a.model_dump_json()}{task.b.model_dump_json()}".encode())

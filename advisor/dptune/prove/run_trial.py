"""One trial of one side of a task: in a fresh copy of its folder, patched where the side is."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Set
from dataclasses import replace
from itertools import islice
from pathlib import Path

from dptune.errors import RunError
from dptune.knobs import TAKE_NO_TIME
from dptune.prove import folder as folders
from dptune.prove import identity, scratch, trial
from dptune.prove.result import SideName, Trial
from dptune.prove.task import Task

_LEAST_S = 30.0  # that a first step may take, however little time is left


def run_side(
    task: Task,
    side: SideName,
    number: int,
    folder: Path,
    left_s: float,
    warn: Callable[[str], None],
    beside: bool,
) -> Trial:
    """Run a trial, and put what it recorded into `folder`. With `beside` the copy has links to its siblings."""
    trial_folder, place = folder / f"trial-{number:03d}-{side}", folder / "scratch"
    _cleared(trial_folder)  # of a trial that was cut off
    bounds = replace(task.bounds, first_step_s=min(task.bounds.first_step_s, max(left_s, _LEAST_S)))
    source = task.sources[side]
    try:
        copy = None if source is None else scratch.make(source, place, beside)
        cwd = copy.path if copy else task.directory
        if copy and side == "B":
            scratch.rewrite(copy, task.patched)
        for path, why in islice((copy.exposed() if copy and number == 1 else {}).items(), scratch.MOST_NAMED):
            warn(f"{path} is not copied ({why}): if the script writes there, trials overwrite your files")
        written = {name: task.settings["B"][name] for name in task.written} if side == "B" else {}
        change = {name: task.settings["B"][name] for name in task.changed} if side == "A" else {}
        settings, mark = task.from_outside(side), folders.mark(folder)
        made = trial.run(task.launches[side], side, number, settings, bounds, trial_folder, cwd, mark, written, change)
        if copy is None:
            return made
        changed = {str(path): why for path, why in copy.written_over().items()}
        lacking = {str(path): why for path, why in islice(sorted(copy.left_out.items()), scratch.MOST_NAMED)}
        return made.model_copy(update={"written_over": changed, "not_copied": lacking, "beside": beside})
    finally:
        scratch.clear(place)


def check_unchanged(task: Task, side: SideName) -> None:
    """Raises RunError where the code is not any more what it was: what was just timed is of neither."""
    source = task.sources[side]
    folder = source or task.directory or Path.cwd()
    other = identity.changed(folder, task.code.get(side, {}), programs_alone=source is None)
    if other:
        named = f"{other[0]} and {len(other) - 1} more" if len(other) > 1 else other[0]
        what = f"{named} changed while trials ran: finished trials are kept and used the old code"
        raise RunError(what, "the same command starts over with the current code")


def is_in_vain(changed: Set[str], made: Trial) -> bool:
    """Whether the change is not what was timed: all of it is not in force, or any of it that takes or saves time."""
    in_vain = changed & made.in_vain
    return bool(in_vain) and (in_vain == changed or not in_vain <= TAKE_NO_TIME)


def _cleared(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place, ignore_errors=True)
    else:
        place.unlink(missing_ok=True)

"""Timing a recorded script in further processes: how far the steps of one process are from those of another."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dptune.capture import recording
from dptune.capture.conclusion import facts_in
from dptune.capture.launch import Launch
from dptune.capture.options import Options
from dptune.capture.session import Recording
from dptune.errors import CaptureError
from dptune.runfile import json_files, paths
from dptune.runfile.facts import Facts
from dptune.runfile.paths import REPEATS
from dptune.runfile.record import Schedule

# Environment of a repeated run: it logs nowhere, and the script can distinguish it from training.
ENVIRONMENT = {"DPTUNE_TRIAL": "1", "WANDB_MODE": "disabled", "COMET_MODE": "disabled"}

ENDS_WITHIN_S = 20.0  # once all steps are timed; a checkpoint may be written then
LAST_BYTES = 200_000  # of what a script printed, and as many first ones

Show = Callable[[str], None]


def whole(made: Recording) -> bool:
    """Whether all ranks of the run were recorded here: another launcher may have started further ones."""
    facts = json_files.read(paths.facts(made.folder, made.ranks[0]), Facts)
    return facts.world_size == len(made.ranks)


def repeat(started: Launch, options: Options, folder: Path, times: int, show: Show) -> Recording | None:
    """Run it so many times again, and time as many untraced steps; what it prints goes beside the facts.

    Facts go to `repeats/N` in the folder of the recording. One that the host of a virtual machine took much of the
    cores' time from is run anew, as often as there are repeats at most. It ends with the first that does not come to
    all its steps, which it returns: those before it are kept.
    """
    place = folder / REPEATS
    recorded_schedule = options.schedule
    schedule = Schedule(recorded_schedule.warmup, recorded_schedule.untraced, 0, 0, recorded_schedule.window_s)
    try:
        place.mkdir()
    except OSError as error:
        raise CaptureError(f"cannot make {place}: {error.strerror}") from None
    number, anew = 1, times
    while number <= times:
        show(f"untraced repeat {number} of {times}: output goes to {place / f'{number}.txt'}")
        once = replace(
            options,
            schedule=schedule,
            run_dir=place / str(number),
            output=place / f"{number}.txt",
            environment={**options.environment, **ENVIRONMENT},
            limits=replace(options.limits, end_s=ENDS_WITHIN_S),
            quiet=True,
            trial=True,
        )
        made = recording.record(started, once)
        shorten(place / f"{number}.txt")
        if not made.complete or made.interrupted or made.hung:
            return made
        if anew and (share := _taken_share(made.folder)):
            show(f"{100 * share:.0f} % of the CPU time was taken by other virtual machines: running that one again")
            shutil.rmtree(made.folder, ignore_errors=True)
            anew -= 1
        else:
            number += 1
    return None


def _taken_share(folder: Path) -> float:
    """What of the cores' time was taken while steps were timed, where that was much; else 0."""
    windows = [rank_facts.window("untraced") for rank_facts in facts_in(folder)]
    return max(
        (window.taken_share or 0.0 for window in windows if window is not None and window.disturbed), default=0.0
    )


def shorten(output: Path) -> None:
    """Keep the beginning and the end of what it printed."""
    with contextlib.suppress(OSError):
        size = output.stat().st_size
        if size <= 2 * LAST_BYTES:
            return
        with output.open("rb+") as file:
            first = file.read(LAST_BYTES)
            file.seek(size - LAST_BYTES)
            last = file.read()
            file.seek(0)
            file.write(first + f"\n... {size - 2 * LAST_BYTES} bytes left out ...\n".encode() + last)
            file.truncate()

"""Timing a recorded script in further processes: how far the steps of one process are from those of another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dptune.capture import recording
from dptune.capture.launch import Launch
from dptune.capture.options import Options
from dptune.capture.session import Recording
from dptune.errors import CaptureError
from dptune.runfile.paths import REPEATS
from dptune.runfile.record import Schedule

# What a script is told that runs once more, so that it logs nowhere and can tell that from training.
ENVIRONMENT = {"DPTUNE_TRIAL": "1", "WANDB_MODE": "disabled", "COMET_MODE": "disabled"}

Told = Callable[[str], None]


def repeat(started: Launch, options: Options, folder: Path, times: int, told: Told) -> Recording | None:
    """Run it so many times again, and time as many steps without the profiler; what it prints goes beside the facts.

    Facts go to `repeats/N` in the folder of the recording. It ends with the first that does not come to all its steps,
    which it returns: those before it are kept.
    """
    place = folder / REPEATS
    own = options.schedule
    schedule = Schedule(own.warmup, own.unprofiled, 0, 0, own.window_s)
    try:
        place.mkdir()
    except OSError as error:
        raise CaptureError(f"cannot make {place}: {error.strerror}") from None
    for number in range(1, times + 1):
        told(f"once more without the profiler, {number} of {times}: what it prints goes to {place / f'{number}.txt'}")
        once = replace(
            options,
            schedule=schedule,
            run_dir=place / str(number),
            output=place / f"{number}.txt",
            environment={**options.environment, **ENVIRONMENT},
            quiet=True,
            trial=True,
        )
        made = recording.record(started, once)
        if not made.complete or made.interrupted:
            return made
    return None

"""A recording that nobody watches: the run folder, and the environment that makes any launcher record into it."""

from __future__ import annotations

import os
import shlex

from dptune.capture import disk, folder, launch, recording
from dptune.capture.folder import RunFolder
from dptune.capture.injected.record.plan import Plan
from dptune.capture.interpreter import Interpreter
from dptune.capture.launch import Launch
from dptune.capture.options import Options


def make(options: Options, interpreter: Interpreter | None) -> tuple[RunFolder, list[str]]:
    """The new folder, and the lines for a shell to evaluate."""
    started = Launch("environment", (), (), "environment", interpreter)
    run = recording.begin(started, options)
    disk.check(folder.intended(options.run_dir, started.name, None), options.schedule, len(options.ranks or (0,)))
    run_folder = folder.own(options.run_dir, started.name)
    run_folder.write(run)
    added = launch.additions(plan(options, run_folder), os.environ)
    gone = [name for name in launch.removed(options.settings) if name not in added]
    lines = [f"export {name}={shlex.quote(value)}" for name, value in added.items()]
    return run_folder, [*lines, *(f"unset {name}" for name in gone)]


def plan(options: Options, run_folder: RunFolder) -> Plan:
    """The plan of a recording without a launcher."""
    return Plan(
        folder=str(run_folder.path.resolve()),
        launcher=0,
        schedule=options.schedule,
        end_when_full=options.end_when_full,
        ranks=options.ranks,
        settings=options.settings,
        nccl_log=options.nccl_log,
        cpu_peak=options.cpu_peak,
    )

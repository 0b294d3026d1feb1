"""How a recorded run is started again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dptune.capture import interpreter, launch
from dptune.capture.launch import Launch, Script
from dptune.capture.torchrun import Torchrun
from dptune.errors import CaptureError, RunError
from dptune.knobs import Value
from dptune.runfile.record import RunRecord
from dptune.runfile.redaction import HIDDEN

_GIVE_IT = "repeat the command with the script at its end: -- train.py ITS ARGUMENTS"
_GIVE_LAUNCHER = "repeat the command with the launcher at its end: -- torchrun ... train.py"


def launch_of(record: RunRecord, words: Sequence[str] = ()) -> Launch:
    """The launch of a recording, with `words` for the script and its arguments where they are given.

    Raises RunError where it cannot be known, or cannot be done from here.
    """
    command = list(words) or words_of(record)
    script = Script(command[0], tuple(command[1:]))
    if record.launched_by == "command" or (words and script.program):
        return launch.own_command(script, interpreter.of_program(script.program) if script.program else None)
    script = _from_a_copy(Script.of(command))
    try:
        script.check()
    except CaptureError as error:
        raise RunError(error.message, _GIVE_IT) from None
    python = interpreter.choose(record.python if Path(record.python).is_file() else None)
    if record.launched_by == "torchrun":
        return launch.under_torchrun(script, python, Torchrun(nproc_per_node=record.nproc_per_node))
    return launch.alone(script, python)


def _from_a_copy(script: Script) -> Script:
    """The script as it is started in a copy of the working directory.

    By a relative path where it is in there, so that the copy is what runs; by its absolute path where it is elsewhere.
    """
    here = Path.cwd()
    path = Path(os.path.normpath(here / script.target))
    if script.module or (path.is_relative_to(here) and not Path(script.target).is_absolute()):
        return script
    return replace(script, target=str(path.relative_to(here) if path.is_relative_to(here) else path))


def settings_of(record: RunRecord) -> dict[str, Value]:
    """What was set from outside. Raises RunError where that held a secret."""
    lacking = [name for name, value in record.settings.items() if isinstance(value, str) and HIDDEN in value]
    if lacking:
        raise RunError(
            f"the recorded value of {lacking[0]} lacks its secret, which dptune does not store",
            "record again with the variable set in the shell, not by --set",
        )
    return record.settings


def directory_of(record: RunRecord, hint: str = "change to the folder of the script, and use --here") -> Path:
    """Where it was started. Raises RunError, with the hint, where that is not here."""
    path = Path(record.working_directory)
    if not record.working_directory or not path.is_dir():
        where = (
            f"in {record.working_directory}, which does not exist here"
            if record.working_directory
            else "somewhere unknown"
        )
        raise RunError(f"the run was started {where}", hint)
    return path


def words_of(record: RunRecord) -> list[str]:
    """The script and its arguments. Raises RunError where they are not known, or are not started from one place."""
    if record.launched_by == "launcher":
        raise RunError(
            "the run was started by a launcher that started dptune once per rank: it cannot be started from here",
            _GIVE_LAUNCHER,
        )
    if record.launched_by in ("environment", "code") and (record.world_size or 1) > 1:
        raise RunError(f"the launcher of the run's {record.world_size} ranks is unknown", _GIVE_LAUNCHER)
    if record.nnodes not in (1, "1", "1:1"):
        raise RunError(f"the run had {record.nnodes} nodes, but trials run on this one only", "use dptune compare")
    words = list(record.command)
    if record.launched_by != "command":
        words = words[1:]  # python
    if not words:
        raise RunError("the recording has no command", _GIVE_IT)
    if any(HIDDEN in word for word in words):
        raise RunError("the recorded command lacks its secrets, which dptune does not store", _GIVE_IT)
    return words

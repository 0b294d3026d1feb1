"""Show what a run folder recorded by somebody else would execute, and ask before running it."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from dptune.errors import RunError
from dptune.knobs import ENVIRONMENT, Value, written
from dptune.present.visible import visible
from dptune.runfile.origin import is_foreign
from dptune.runfile.paths import RUN_JSON
from dptune.runfile.record import RunRecord
from dptune.runfile.redaction import redacted_command, redacted_settings

_HINT = "if you trust it, run the same command with --yes"


def ask_before_running(
    folder: Path,
    record: RunRecord,
    words: Sequence[str],
    directory: str,
    change: Mapping[str, Value],
    agreed: bool,
) -> None:
    """Return where the run folder is this user's from this machine, or what it names may be run.

    `words` are a command that was given instead of the recorded one, `directory` is where it would be run, and `change`
    what would be set beside what was recorded. Raises RunError where the user does not agree or cannot be asked.
    """
    if agreed or not _is_foreign(folder, record):
        return
    for line in _shown(folder, record, words, directory, change):
        print(f"dptune: {visible(line)}", file=sys.stderr)
    if not (_is_terminal(sys.stdin) and _is_terminal(sys.stderr)):
        raise RunError(
            f"{folder} was not recorded by you on this machine, and there is no terminal to ask for confirmation", _HINT
        )
    print("dptune: run it? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise RunError(f"nothing from {folder} was run", _HINT)


def _is_foreign(folder: Path, record: RunRecord) -> bool:
    try:
        return any(is_foreign(path, record.origin) for path in (folder, folder / RUN_JSON))
    except OSError:
        return True


def _shown(
    folder: Path, record: RunRecord, words: Sequence[str], directory: str, change: Mapping[str, Value]
) -> list[str]:
    """What would be run, one line each: of the folder all that it says, of what was typed no secrets."""
    from dptune.capture.repeats import ENVIRONMENT as OF_TRIALS

    settings = {**record.settings, **redacted_settings(change)}
    variables = {name: value for name, value in settings.items() if name.startswith(ENVIRONMENT)}
    knobs = {name: value for name, value in settings.items() if name not in variables}
    set_there = {**OF_TRIALS, **{name.removeprefix(ENVIRONMENT): value for name, value in variables.items()}}
    interpreter = record.python if Path(record.python).is_file() else "yours: the recorded one does not exist here"
    if record.launched_by == "command":
        interpreter = "set by the command"
    return [
        f"{folder} was not recorded by you on this machine. Verifying it runs:",
        f"  command      {shlex.join(redacted_command(list(words)) if words else record.typed)}",
        f"  interpreter  {interpreter}",
        f"  directory    {directory}",
        f"  settings     {_assignments(knobs) or 'none'}",
        f"  environment  yours, with {_assignments(set_there)}",
    ]


def _assignments(values: Mapping[str, Value]) -> str:
    return " ".join(f"{name}={shlex.quote(written(value))}" for name, value in values.items())


def _is_terminal(stream: object) -> bool:
    try:
        return os.isatty(stream.fileno())  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):  # there is none, it is closed, or stands in for one
        return False

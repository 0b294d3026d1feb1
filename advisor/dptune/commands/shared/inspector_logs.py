"""Logs of NCCL Inspector among the paths of a command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dptune.errors import TraceError

if TYPE_CHECKING:
    from dptune.measured.inspector import InspectorFigures


def logs_of(paths: Sequence[str]) -> list[Path] | None:
    """The logs, where all paths are such logs or folders that hold nothing else; else None."""
    from dptune.trace.inspector import is_inspector_log

    found: list[Path] = []
    for given in paths:
        path = Path(given)
        if "://" in given or not path.exists():
            return None
        files = [file for file in sorted(path.iterdir()) if file.is_file()] if path.is_dir() else [path]
        if not files or not all(map(is_inspector_log, files)):
            return None
        found += files
    return found or None


def figures(logs: Sequence[Path]) -> InspectorFigures:
    """Of the logs of one job; those without a collective are named."""
    from dptune.measure.inspector import inspector_figures
    from dptune.trace.inspector import InspectedCall, read_log

    calls: list[InspectedCall] = []
    failed: list[TraceError] = []
    unread = 0
    for path in logs:
        try:
            of_log, damaged = read_log(path)
        except TraceError as error:
            failed.append(error)
            continue
        calls += of_log
        unread += damaged
    if not calls:
        raise failed[0]
    found = inspector_figures(calls, unread)
    return found.model_copy(update={"findings": [error.message for error in failed]})

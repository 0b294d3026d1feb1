"""The list of recordings that `dptune history` prints, and `dptune report` of a folder of several."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dptune.commands.shared.recordings import recordings
from dptune.errors import DptuneError, RunError
from dptune.present import terminal
from dptune.runfile.paths import RUNS

if TYPE_CHECKING:
    from dptune.history import Entry, History

LATEST = 20  # recordings that are listed


def history_of(folders: Sequence[Path], last: int = LATEST, jobs: int | None = None, cached: bool = True) -> History:
    """The `last` latest recordings in the folders, all with 0, oldest first. Raises RunError where there is none."""
    from dptune import __version__
    from dptune.history import History

    found = recordings(list(folders))
    if not found:
        raise RunError(
            f"no recordings in {', '.join(map(str, folders)) or RUNS}", "record one: `dptune profile train.py`"
        )
    listed = found[-last:] if last else found
    entries = [_entry(str(recording.folder), recording.recorded, jobs, cached) for recording in listed]
    return History(dptune=__version__, entries=entries, earlier=len(found) - len(listed))


def history_text(history: History) -> str:
    """A line for each recording, and the commands that open and compare them, as stdout shows it."""
    from dptune.present.ink import paint
    from dptune.present.sections.history import page

    blocks = terminal.draws_blocks(sys.stdout)
    return paint(page(history, terminal.width(sys.stdout)), terminal.colours(sys.stdout), blocks)


def _entry(folder: str, recorded: str, jobs: int | None, cached: bool) -> Entry:
    from dptune.commands.shared.reading import report_of
    from dptune.history import Entry

    try:
        report = report_of([folder], jobs, cached=cached)
    except DptuneError as error:
        return Entry(folder=folder, recorded=recorded, error=str(error))
    return Entry.of(folder, report)

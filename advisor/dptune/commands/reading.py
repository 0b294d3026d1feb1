"""From the paths on a command line to a report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dptune.errors import RunError
from dptune.runfile.paths import LATEST, RUNS

if TYPE_CHECKING:
    from dptune.advice import Report


def report_of(paths: Sequence[str]) -> Report:
    """Read the traces, measure them, ask the rules; the latest recording where no path is given."""
    from dptune import config
    from dptune.advise.engine import build_report
    from dptune.measure import measure
    from dptune.present.progress import progress
    from dptune.trace import load

    settings = config.load()
    chosen: Sequence[str | Path] = paths or [latest(RUNS)]
    with progress() as show:
        run = load(chosen, progress=show)
        return build_report(run, measure(run), settings)


def latest(runs: Path) -> Path:
    """The folder that `latest` names; raises RunError where nothing was recorded here."""
    record = "record one with `dptune profile train.py`, or name a run folder or trace files"
    try:
        name = (runs / LATEST).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        raise RunError(f"nothing to report on: there is no recording in ./{runs}/", record) from None
    folder = runs / name
    if not name or not folder.is_dir():
        raise RunError(f"./{runs}/{LATEST} names the run '{name}', which is not there any more", record)
    return folder

"""From the paths on a command line to a report."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dptune.errors import RunError
from dptune.runfile.paths import LATEST, RUNS

if TYPE_CHECKING:
    from dptune.advice import Report


def reading_options(parser: argparse.ArgumentParser) -> None:
    """Declare how traces are read."""
    group = parser.add_argument_group("reading")
    group.add_argument(
        "--jobs", type=_count, metavar="N", help="read so many traces at once (default: one for each core)"
    )
    group.add_argument(
        "--no-cache", action="store_true", help="read the traces anew, and keep nothing in .dptune-cache/"
    )


def _count(text: str) -> int:
    if text.isdecimal() and 0 < len(text) < 5 and int(text):
        return int(text)
    raise argparse.ArgumentTypeError(f"must be a number from 1 to 9999, not '{text:.20}'")


def report_of(paths: Sequence[str], jobs: int | None = None, *, cached: bool = True) -> Report:
    """Read the traces, measure them, ask the rules; the latest recording where no path is given.

    `jobs` traces are read at once (None: one for each core); `cached` as in `dptune.trace.load`.
    """
    from dptune import config
    from dptune.advise.engine import build_report
    from dptune.measure import measure
    from dptune.present.progress import progress
    from dptune.trace import load

    settings = config.load()
    chosen: Sequence[str | Path] = paths or [latest(RUNS)]
    with progress() as show:
        run = load(chosen, progress=show, jobs=jobs or usable_cores(), cached=cached)
        return build_report(run, measure(run), settings)


def usable_cores() -> int:
    """How many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        return os.cpu_count() or 1


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

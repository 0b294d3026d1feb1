"""List recordings: step time, throughput and verdict of each.

FOLDER holds run folders of `dptune profile`, or is one. Recordings are listed by their time, the oldest first, with the
git commit they were made at. A recording that cannot be read is listed with the reason.

One recording more or less proves nothing: two runs of the same script differ, too. `dptune compare` and
`dptune check --baseline` test whether a difference is more than chance.

examples:
  dptune history
  dptune history dptune-runs --last 50 --format json
  dptune check new-run --baseline $(dptune history dptune-runs --last 5 --format paths)
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dptune.commands.shared.reading import reading_options
from dptune.errors import DptuneError, RunError, UsageError
from dptune.present import terminal
from dptune.runfile.paths import RUNS
from dptune.runfile.recognition import is_run_folder, record_of

if TYPE_CHECKING:
    from dptune.history import Entry, History


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "folders", nargs="*", metavar="FOLDER", help=f"run folders, or a folder of them (default: {RUNS})"
    )
    parser.add_argument("--last", type=_count, default=20, metavar="N", help="list the N latest (default: 20; 0: all)")
    parser.add_argument(
        "--format",
        choices=("text", "json", "paths"),
        default="text",
        help="what to print; paths: one run folder per line, without those that cannot be read (default: text)",
    )
    reading_options(parser)


def run(args: argparse.Namespace) -> int:
    """Print the list."""
    from dptune import __version__
    from dptune.history import History

    found = [(_recorded(folder), str(folder)) for folder in _run_folders(args.folders)]
    found.sort(key=lambda run: (_seconds(run[0]), run[1]))
    if not found:
        raise RunError(f"no recordings in {', '.join(args.folders) or RUNS}", "record one: `dptune profile train.py`")
    listed = found[-args.last :] if args.last else found
    entries = [_entry(folder, recorded, args) for recorded, folder in listed]
    sys.stdout.write(_text(History(dptune=__version__, entries=entries, earlier=len(found) - len(listed)), args.format))
    return 0


def _run_folders(names: list[str]) -> list[Path]:
    """Every run folder that is named, or lies in a named folder."""
    found: dict[Path, Path] = {}
    for folder in [Path(name) for name in names] or [RUNS]:
        if not folder.is_dir():
            hint = "record a run first: `dptune profile train.py`" if not names else "name a folder"
            raise UsageError(f"{folder} is not a folder", hint)
        found.update({path.resolve(): path for path in _inside(folder)})
    return list(found.values())


def _inside(folder: Path, levels: int = 2) -> list[Path]:
    """The folder itself if it is a run folder, else those inside it and inside its folders."""
    if is_run_folder(folder):
        return [folder]
    children: list[Path] = []
    with contextlib.suppress(OSError):  # a folder that may not be looked into holds none for this user
        children = sorted(filter(Path.is_dir, folder.iterdir())) if levels else []
    return [run for child in children for run in _inside(child, levels - 1)]


def _recorded(folder: Path) -> str:
    """When it was recorded; empty where its run.json does not say."""
    try:
        return record_of(folder).recorded
    except (OSError, ValueError):
        return ""


def _seconds(recorded: str) -> float:
    """The time to sort by, in whatever zone it was written; unknown times come first."""
    try:
        return datetime.datetime.fromisoformat(recorded).timestamp()
    except (ValueError, OverflowError, OSError):
        return -math.inf


def _entry(folder: str, recorded: str, args: argparse.Namespace) -> Entry:
    from dptune.commands.shared.reading import report_of
    from dptune.history import Entry

    try:
        report = report_of([folder], args.jobs, cached=not args.no_cache)
    except DptuneError as error:
        return Entry(folder=folder, recorded=recorded, error=str(error))
    return Entry.of(folder, report)


def _text(history: History, form: str) -> str:
    if form == "json":
        return history.model_dump_json(indent=1) + "\n"
    if form == "paths":
        return "".join(f"{entry.folder}\n" for entry in history.entries if not entry.error)
    from dptune.present.ink import paint
    from dptune.present.sections.history import page

    blocks = terminal.draws_blocks(sys.stdout)
    return paint(page(history, terminal.width(sys.stdout)), terminal.colours(sys.stdout), blocks)


def _count(text: str) -> int:
    if text.isdecimal() and len(text) < 9:
        return int(text)
    raise argparse.ArgumentTypeError(f"must be a number of recordings, not '{text:.20}'")

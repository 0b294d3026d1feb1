"""List recordings: step time, throughput and verdict of each.

FOLDER is a run folder of `dptune profile`, a folder of run folders, or the name or commit (HEAD, a branch) of
recordings in dptune-runs. Symbolic links inside FOLDER are not followed. Recordings are listed oldest first, with the
git commit they were made at. A recording that cannot be read is listed with the reason.

One recording proves nothing: two runs of the same script differ by chance. `dptune compare` and
`dptune check --baseline` test whether a difference is more than chance; --baseline takes a run's name or commit.

examples:
  dptune history
  dptune history dptune-runs --last 50 --format json
  dptune history 1f3870be274f
  dptune check new-run --baseline $(dptune history dptune-runs --last 5 --format paths)
  dptune check new1 new2 new3 new4 --baseline 1f3870be274f
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dptune.commands.shared.listing import LATEST, history_of, history_text
from dptune.commands.shared.reading import EMPTY_PATH, reading_options
from dptune.commands.shared.recordings import resolved
from dptune.errors import UsageError
from dptune.runfile.paths import RUNS

if TYPE_CHECKING:
    from dptune.history import History


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "folders",
        nargs="*",
        metavar="FOLDER",
        help=f"run folders, a folder of them, or recordings by name or commit (default: {RUNS})",
    )
    parser.add_argument(
        "--last", type=_count, default=LATEST, metavar="N", help=f"list the N latest (default: {LATEST}; 0: all)"
    )
    parser.add_argument(
        "--format",
        choices=("text", "json", "paths"),
        default="text",
        help="what to print; paths: one run folder per line, without those that cannot be read (default: text)",
    )
    reading_options(parser)


def run(args: argparse.Namespace) -> int:
    """Print the list."""
    history = history_of(_folders(resolved(args.folders)), args.last, args.jobs, cached=not args.no_cache)
    sys.stdout.write(_text(history, args.format))
    return 0


def _folders(names: list[str]) -> list[Path]:
    """Those that are named; dptune-runs where none is."""
    if "" in names:
        raise UsageError(*EMPTY_PATH)
    for folder in [Path(name) for name in names] or [RUNS]:
        if not folder.is_dir():
            if not names:
                hint = "record one with `dptune profile train.py`, or name the folder that holds run folders"
                raise UsageError(f"no recording in ./{RUNS}/", hint)
            what = "is not a folder" if folder.exists() or folder.is_symlink() else "does not exist"
            raise UsageError(f"{folder} {what}", "name run folders, or a folder that holds them")
    return [Path(name) for name in names] or [RUNS]


def _text(history: History, form: str) -> str:
    if form == "json":
        return history.model_dump_json(indent=1) + "\n"
    if form == "paths":
        return "".join(f"{entry.folder}\n" for entry in history.entries if not entry.error)
    return history_text(history)


def _count(text: str) -> int:
    if text.isdecimal() and len(text) < 9:
        return int(text)
    raise argparse.ArgumentTypeError(f"must be a number of recordings, not '{text:.20}'")

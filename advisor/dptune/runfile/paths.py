"""Names inside a run folder."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

RUNS = Path("dptune-runs")
RUN_JSON = "run.json"
COMPARED = "compared"
VERIFIED = "verified"
TUNED = "tuned"  # of further searches: tuned-2, ...
REPEATS = "repeats"
LATEST = "latest"
LIVE = "live"
_TUNED = re.compile(rf"{TUNED}(-\d+)?")
# Traces may have been unpacked since.
_RANK_FILE = re.compile(r"^rank-(\d{1,9})\.(facts\.json|(?:detail\.)?trace\.json(?:\.gz)?)$")


def new(name: str) -> Path:
    """Where a recording goes unless somebody says otherwise."""
    return RUNS / f"{datetime.datetime.now():%Y-%m-%dT%H-%M-%S}-{name}"


def facts(folder: Path, rank: int) -> Path:
    """Path of a rank's facts."""
    return folder / f"rank-{rank:05d}.facts.json"


def trace(folder: Path, rank: int, window: str) -> Path:
    """Path of a rank's trace of the `light` or the `detailed` window."""
    return folder / f"rank-{rank:05d}.{'detail.' if window == 'detailed' else ''}trace.json.gz"


def unrecorded(folder: Path, rank: int) -> Path:
    """Path of the list of a rank's processes that trained and were not recorded, a line each."""
    return folder / f"rank-{rank:05d}.unrecorded.txt"


def is_unrecorded(path: Path) -> bool:
    """Whether a file name is that of such a list."""
    return path.is_file() and re.match(r"^rank-\d+\.unrecorded\.txt$", path.name) is not None


def is_tuned(name: str) -> bool:
    """Whether a folder name inside a run folder is that of a search by `dptune tune`."""
    return _TUNED.fullmatch(name) is not None


def rank_of(path: Path) -> int | None:
    """The rank in a file name of this format; None for any other name."""
    match = _RANK_FILE.match(path.name)
    return int(match[1]) if match else None


def is_detail(path: Path) -> bool:
    """Whether a file name of this format is that of a detailed window."""
    match = _RANK_FILE.match(path.name)
    return bool(match and match[2].startswith("detail"))


def holds_facts(folder: Path) -> bool:
    """Whether a rank of a recording wrote here."""
    return any(folder.glob("rank-*.facts.json"))


def made_by_dptune(folder: Path) -> bool:
    """Whether the folder is a recording, or one of those that lie beside recordings. dptune-runs itself is not: the
    demo's script is there.
    """
    try:
        if folder.parent.name == RUNS.name and (
            folder.name in (LATEST, COMPARED) or (folder / RUN_JSON).is_file() or holds_facts(folder)
        ):
            return True
        return folder.is_dir() and not folder.is_symlink() and holds_facts(folder)
    except OSError:  # it may not be read
        return False

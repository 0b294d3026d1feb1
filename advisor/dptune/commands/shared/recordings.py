"""The recordings in folders: which there are, and which a name or a commit means."""

from __future__ import annotations

import contextlib
import datetime
import glob
import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dptune.errors import UsageError
from dptune.runfile.paths import RUNS
from dptune.runfile.recognition import is_run_folder, record_of
from dptune.runfile.record import RunRecord

_COMMIT = re.compile(r"[0-9a-f]{4,40}\+?")
_MOST_NAMED = 4


@dataclass(frozen=True)
class Recording:
    """A run folder, and what its run.json says."""

    folder: Path

    @cached_property
    def _record(self) -> RunRecord:
        try:
            return record_of(self.folder)
        except (OSError, ValueError):
            return RunRecord()

    @property
    def recorded(self) -> str:
        """When it was recorded; empty where its run.json does not say."""
        return self._record.recorded

    @property
    def commit(self) -> str:
        """The git commit of the script, with `+` where files differ from it; empty where it is not known."""
        return self._record.commit

    @property
    def seconds(self) -> float:
        """The time to sort by, in whatever zone it was written; unknown times come first."""
        try:
            return datetime.datetime.fromisoformat(self.recorded).timestamp()
        except (ValueError, OverflowError, OSError):
            return -math.inf


def recordings(folders: Iterable[Path]) -> list[Recording]:
    """Every run folder among some folders, or inside them, the oldest first."""
    found = {path.resolve(): Recording(path) for folder in folders for path in _inside(folder)}
    return sorted(found.values(), key=lambda recording: (recording.seconds, str(recording.folder)))


def _inside(folder: Path, levels: int = 2) -> list[Path]:
    """The folder itself if it is a run folder, else those inside it and inside its folders."""
    if is_run_folder(folder):
        return [folder]
    children: list[Path] = []
    with contextlib.suppress(OSError):  # a folder that may not be looked into holds none for this user
        children = sorted(filter(Path.is_dir, folder.iterdir())) if levels else []
    return [run for child in children for run in _inside(child, levels - 1)]


def resolved(names: Sequence[str], besides: Sequence[str]) -> list[str]:
    """The runs that names mean: a path as it is; else recordings of dptune-runs by the name of their folder, or by
    their commit, which all recordings at that commit are meant by, without those of `besides`.
    """
    return [run for name in names for run in ([name] if _is_path(name, besides) else _named(name, besides))]


def _is_path(name: str, besides: Sequence[str]) -> bool:
    return name in besides or "://" in name or os.sep in name or glob.has_magic(name) or Path(name).exists()


def _named(name: str, besides: Sequence[str]) -> list[str]:
    found = recordings([RUNS])
    named = [each for each in found if each.folder.name == name] or [
        each for each in found if name and each.folder.name.startswith(name)
    ]
    if len(named) > 1:
        raise UsageError(
            f"{len(named)} recordings have names that start with {name}: {_listed(each.folder.name for each in named)}",
            "give more of the name",
        )
    if named:
        return [str(named[0].folder)]
    return _at_commit(name, found, {Path(path).resolve() for path in besides})


def _at_commit(name: str, found: Sequence[Recording], besides: set[Path]) -> list[str]:
    digits = name.removesuffix("+")
    fitting = [each for each in found if _COMMIT.fullmatch(name) and _same_commit(each.commit, digits)]
    commits = {each.commit.removesuffix("+") for each in fitting}
    if len(commits) > 1:
        raise UsageError(f"{name} matches {len(commits)} commits: {_listed(sorted(commits))}", "give more digits")
    exact = [each for each in fitting if each.commit.endswith("+") == name.endswith("+")]
    if fitting and not exact:
        (commit,) = {each.commit for each in fitting}
        words = "all have uncommitted changes" if commit.endswith("+") else "none has uncommitted changes"
        raise UsageError(f"no match among the recordings at {name}: {words}", f"--baseline {commit}")
    if exact and not (left := [each for each in exact if each.folder.resolve() not in besides]):
        raise UsageError(
            f"every recording at {name} is being checked, none is left as the baseline", "record the baseline, too"
        )
    if not exact:
        raise UsageError(
            f"no recording in {RUNS} has the name or the commit {name}", "`dptune history` lists names and commits"
        )
    return [str(each.folder) for each in left]


def _same_commit(recorded: str, digits: str) -> bool:
    """Whether one is the start of the other: recordings keep the first digits alone."""
    commit = recorded.removesuffix("+")
    return bool(commit) and (commit.startswith(digits) or digits.startswith(commit))


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - _MOST_NAMED} more" if len(every) > _MOST_NAMED else ""
    return ", ".join(every[:_MOST_NAMED]) + more

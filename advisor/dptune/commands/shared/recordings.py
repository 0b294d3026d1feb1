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
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path

from dptune.errors import UsageError
from dptune.runfile.commit import commit_of
from dptune.runfile.paths import LATEST, RUNS
from dptune.runfile.recognition import is_run_folder, record_of
from dptune.runfile.record import RunRecord

_COMMIT = re.compile(r"[0-9a-f]{4,40}\+?")
_SETTING = re.compile(r"(env\.\w+|[a-z_]+(\.[a-z0-9_]+)?)=[^/]*")  # of a knob, or of what only a prediction changes
_NUMBERED = re.compile(r"(.*?)-([0-9]{1,9})")  # the second recording of one name, and later ones
_MOST_NAMED = 4
RECORDING_HELP = f"run folder; or a recording in {RUNS}, by name or commit (default: the latest)"
RUN_HELP = RECORDING_HELP.replace("run folder", "run folder or traces", 1)


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

    @property
    def order(self) -> tuple[float, str, int]:
        """What recordings are sorted by. Times are whole seconds; of one second and name the first has no number,
        and later ones have rising ones (`train-2`, `train-10`, or that of the process).
        """
        numbered = _NUMBERED.fullmatch(self.folder.name)
        name, number = (numbered[1], int(numbered[2])) if numbered else (self.folder.name, 1)
        return self.seconds, str(self.folder.with_name(name) if name else self.folder), number


def recordings(folders: Iterable[Path]) -> list[Recording]:
    """Every run folder among some folders, or inside them, the oldest first."""
    found = {path.resolve(): Recording(path) for folder in folders for path in _inside(folder)}
    return sorted(found.values(), key=lambda recording: recording.order)


def _inside(folder: Path, levels: int = 2) -> list[Path]:
    """The folder itself if it is a run folder, else those inside it and inside its folders; links are not followed."""
    if is_run_folder(folder):
        return [folder]
    children: list[Path] = []
    with contextlib.suppress(OSError):  # a folder that may not be looked into holds none for this user
        entries = folder.iterdir() if levels else ()
        children = sorted(entry for entry in entries if entry.is_dir() and not entry.is_symlink())
    return [run for child in children for run in _inside(child, levels - 1)]


def resolved(names: Sequence[str], besides: Sequence[str] = ()) -> list[str]:
    """The runs that names mean: a path as it is; else recordings of dptune-runs by the name of their folder, or by
    their commit, which all recordings at that commit are meant by, without those of `besides`.
    """
    for name in names:
        if _SETTING.fullmatch(name) and not _exists(Path(name)):
            raise UsageError(
                f"{name} is a setting, not a run", f"`dptune whatif` and `dptune verify` take it as --set {name}"
            )
    return [run for name in names for run in ([name] if _is_path(name, besides) else _named(name, besides))]


def resolved_singly(names: Sequence[str]) -> list[str]:
    """The same for commands that read one run. Raises UsageError for a commit of several recordings."""
    found = []
    for name in names:
        runs = resolved([name])
        if len(runs) > 1:
            listed = _listed(Path(run).name for run in runs)
            raise UsageError(f"{len(runs)} recordings at commit {name}: {listed}", "name one of them")
        found += runs
    return found


def _is_path(name: str, besides: Sequence[str]) -> bool:
    if name in besides or name in ("", "-") or name.startswith("~") or "://" in name:
        return True
    return os.sep in name or glob.has_magic(name) or _exists(Path(name))


def _exists(path: Path) -> bool:
    try:
        return path.exists() or path.is_symlink()
    except (OSError, ValueError):  # what cannot be opened is reported where it is read
        return True


def _named(name: str, besides: Sequence[str]) -> list[str]:
    found = recordings([RUNS])
    if not found:
        return [name]  # reported as a path where it is read
    if name == LATEST:
        return [str(RUNS / LATEST)]
    named = [each for each in found if each.folder.name == name] or [
        each for each in found if each.folder.name.startswith(name)
    ]
    if len(named) > 1:
        raise UsageError(
            f"{len(named)} recordings have names that start with {name}: {_listed(each.folder.name for each in named)}",
            "give more characters of the name",
        )
    if named:
        return [str(named[0].folder)]
    commit = "" if _COMMIT.fullmatch(name) else commit_of(name)
    if commit and not any(_same_commit(each.commit, commit) for each in found):
        raise UsageError(f"no recording in {RUNS} is of {name} (commit {commit})", _near_misses(name, found))
    return _at_commit(commit or name, found, {Path(path).resolve() for path in besides})


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
        raise UsageError(f"no match among the recordings at {name}: {words}", f"name them by {commit}")
    if exact and not (left := [each for each in exact if each.folder.resolve() not in besides]):
        raise UsageError(
            f"every recording at {name} is being checked, none is left as the baseline", "record the baseline, too"
        )
    if not exact:
        raise UsageError(
            f"{name} does not exist, and no recording in {RUNS} has that name or commit", _near_misses(name, found)
        )
    return [str(each.folder) for each in left]


def _near_misses(name: str, found: Sequence[Recording]) -> str:
    """Names and commits that may be meant: those that contain the text, else those that differ by a few letters."""
    known = [*dict.fromkeys(known for each in reversed(found) for known in (each.folder.name, each.commit) if known)]
    near = [each for each in known if name in each] or get_close_matches(name, known, _MOST_NAMED)
    lists = "`dptune history` lists names and commits"
    return f"did you mean {_listed(near, ' or ')}? {lists}" if near else lists


def _same_commit(recorded: str, digits: str) -> bool:
    """Whether one is the start of the other: recordings keep the first digits alone."""
    commit = recorded.removesuffix("+")
    return bool(commit) and (commit.startswith(digits) or digits.startswith(commit))


def _listed(names: Iterable[str], between: str = ", ") -> str:
    every = list(names)
    more = f" and {len(every) - _MOST_NAMED} more" if len(every) > _MOST_NAMED else ""
    return between.join(every[:_MOST_NAMED]) + more

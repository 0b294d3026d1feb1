"""The run folder: a new one for one launcher, or one that the launchers of several nodes or ranks share.

Launchers that share a folder do not talk to each other. Each takes its seat by making `launcher-NAME.json`, which only
one can; it holds the same record as run.json, as that launcher knows it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dptune.errors import CaptureError
from dptune.runfile import json_files, paths, recognition
from dptune.runfile.record import RunRecord

_NEVER_OVERWRITTEN = "name a new folder: a recording is never overwritten"
_FOR_THE_FIRST_S = 5.0  # between the folder and the run.json of the launcher that came first


@dataclass(frozen=True)
class RunFolder:
    """A folder, and the name of this launcher's seat in it; `made`: the folders that were made for it, inner first."""

    path: Path
    seat: str | None = None
    made: tuple[Path, ...] = ()

    @property
    def live(self) -> Path:
        """Where the processes of this launcher tell how they are."""
        return self.path / paths.LIVE / self.seat if self.seat else self.path / paths.LIVE

    @property
    def stacks(self) -> Path:
        """Where the stacks of a hang are written."""
        return self.path / (f"stacks-{self.seat}.txt" if self.seat else "stacks.txt")

    @property
    def own_record(self) -> Path:
        """This launcher's record."""
        return _record_of(self.path, self.seat) if self.seat else self.path / paths.RUN_JSON

    def write(self, record: RunRecord) -> None:
        """Write this launcher's record, and run.json where there is none yet."""
        json_files.write(self.own_record, record)
        if not (self.path / paths.RUN_JSON).exists():
            json_files.write(self.path / paths.RUN_JSON, record)

    def records(self) -> list[RunRecord]:
        """The records of all launchers that sit in the folder."""
        found = []
        for file in sorted(self.path.glob("launcher-*.json")):
            with contextlib.suppress(OSError, ValueError):
                found.append(json_files.read(file, RunRecord))
        return found

    def close(self) -> None:
        """Remove what only a running recording needs."""
        shutil.rmtree(self.live, ignore_errors=True)
        if self.seat:
            with contextlib.suppress(OSError):  # others are still at it
                self.live.parent.rmdir()

    def undo(self) -> None:
        """Remove what was made, where nothing was started."""
        self.close()
        if self.made or self.seat:
            self.own_record.unlink(missing_ok=True)
        if self.made:
            (self.path / paths.RUN_JSON).unlink(missing_ok=True)
        for folder in self.made:
            with contextlib.suppress(OSError):
                folder.rmdir()


def intended(asked: Path | None, name: str, shared: str | None) -> Path:
    """The folder a recording would go to. Raises CaptureError where torch could not write there."""
    path = asked or (paths.RUNS / f"{shared}-{name}" if shared else paths.new(name))
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError:
        what = f"torch cannot write to a folder whose path is not UTF-8: {path.absolute()}"
        raise CaptureError(what, "choose another with --run-dir") from None
    return path


def check_new(asked: Path | None) -> None:
    """Raise CaptureError where the folder asked for holds anything."""
    if asked is not None and asked.exists() and (not asked.is_dir() or any(asked.iterdir())):
        raise CaptureError(f"--run-dir: {asked} is not empty", _NEVER_OVERWRITTEN)


def own(asked: Path | None, name: str) -> RunFolder:
    """A new folder for this launcher alone."""
    check_new(asked)
    path = intended(asked, name, None)
    made = _make(path)
    if asked is None and path not in made:  # somebody else's, of this second
        path = path.with_name(f"{path.name}-{os.getpid()}")
        made = _make(path)
    return RunFolder(path, None, made)


def shared(asked: Path | None, name: str, record: RunRecord, seat: str, key: str | None) -> RunFolder:
    """The folder of the job `key`, or the one asked for: made by the launcher that comes first, joined by the others.

    Where this seat was taken in an earlier job of that key, its next folder: name-2, name-3.
    """
    first = intended(asked, name, key)
    for path in [first] if asked is not None else _numbered(first):
        folder = RunFolder(path, seat, _make(path))
        refusal = _refusal(path, record) or _sit(folder)
        if not refusal:
            return folder
        if asked is not None:
            raise CaptureError(f"--run-dir: {path} {refusal}", _NEVER_OVERWRITTEN)
    raise AssertionError("folders have no end")


def _numbered(first: Path) -> Iterator[Path]:
    yield first
    number = 2
    while True:
        yield first.with_name(f"{first.name}-{number}")
        number += 1


def _sit(folder: RunFolder) -> str:
    """Take the seat; why not, where somebody has it."""
    assert folder.seat is not None
    try:
        os.close(os.open(folder.own_record, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return f"already has a recording of {folder.seat} (use --node-rank to distinguish nodes)"
    except OSError as error:
        raise _not_made(folder.path, error) from None
    return ""


def _refusal(path: Path, record: RunRecord) -> str:
    """Why a launcher with that record cannot join the folder; empty where it can."""
    deadline = time.monotonic() + _FOR_THE_FIRST_S
    run_json = path / paths.RUN_JSON
    while not run_json.exists():
        names = [entry.name for entry in path.iterdir()]
        ours = all(name.startswith(("launcher-", paths.RUN_JSON, paths.LIVE)) for name in names)
        if not names or (ours and time.monotonic() > deadline):
            return ""
        if not ours:
            return "is not empty"
        time.sleep(0.05)
    if recognition.foreign(run_json):
        return "is not empty"
    try:
        there = json_files.read(run_json, RunRecord)
    except (OSError, ValueError):
        return "is not empty"
    if there.launched_by == record.launched_by == "launcher" and there.ending.how == "recording":
        return ""  # ranks may differ in their arguments
    if there.launched_by == record.launched_by == "launcher" and _same_job(path, record):
        return ""
    same = (there.command, there.nnodes) == (record.command, record.nnodes)
    if not same or there.launched_by != record.launched_by:
        return "contains the recording of another command"
    return "" if there.ending.how == "recording" else "contains a finished recording"


def _same_job(path: Path, record: RunRecord) -> bool:
    """Whether a rank that has already ended, perhaps at once, belonged to a job that others still join."""
    seated = len(list(path.glob("launcher-*.json")))
    return record.world_size is not None and seated < record.world_size


def _make(path: Path) -> tuple[Path, ...]:
    """Make the folder and those above it; the ones that were not there, inner first."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_made(path, error) from None
    return tuple(missing)


def _not_made(path: Path, error: OSError) -> CaptureError:
    return CaptureError(f"cannot make the run folder {path}: {error.strerror}", "choose another with --run-dir")


def _record_of(folder: Path, seat: str) -> Path:
    return folder / f"launcher-{seat}.json"

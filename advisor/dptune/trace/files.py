"""From what a user names to the files to read."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath

from dptune.errors import RunError
from dptune.finding import Finding
from dptune.runfile import paths as names
from dptune.runfile.links import LINKS_JSON
from dptune.trace.failure import RemoteError
from dptune.trace.remote import Remote
from dptune.trace.source import located, redacted

_SUFFIXES = (".json", ".json.gz", ".gz")
_LONGEST_NAME = 4096
_ITERATION = re.compile(r"^iteration_(\d+)$")


@dataclass
class Files:
    """The run folders and the foreign trace files that were found, each once, in a stable order."""

    run_folders: list[Path] = field(default_factory=list)
    traces: list[Path] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    _seen: set[Path] = field(default_factory=set)

    def add(self, paths: list[Path], path: Path) -> None:
        """Append a path to one of the lists, unless it is there."""
        if (key := _key(path)) not in self._seen:
            self._seen.add(key)
            paths.append(path)


def _key(path: Path) -> Path:
    """The path as it is the same however it is written."""
    return path if isinstance(path, Remote) else path.absolute()


def find(wanted: Sequence[str | os.PathLike[str]]) -> Files:
    """Expand globs and folders, of paths and URLs. Raises RunError for one that leads to nothing."""
    found = Files()
    named: list[tuple[str | os.PathLike[str], Path]] = []
    for given in wanted:
        with _naming(given):
            named += [(given, path) for path in _expanded(_named(given))]
    named.sort(key=lambda each: not _is_ours(each[1]))  # a shell's `run/*` names a folder's files beside one another
    for given, path in named:
        with _naming(given):
            if path.parent not in found.run_folders or not path.is_dir():
                _take(path, found)
    folders = {_key(path) for path in found.run_folders}
    found.traces = [path for path in found.traces if _key(path.parent) not in folders or not _belongs(path)]
    if not found.run_folders and not found.traces:
        raise RunError("no trace files were named", "give a run folder, a trace file, a glob or a folder of traces")
    return found


@contextmanager
def _naming(given: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except RemoteError as error:
        raise RunError(f"cannot read {redacted(os.fspath(given))}: {error}", error.hint) from None


def _named(given: str | os.PathLike[str]) -> Path:
    path = located(given)
    if not isinstance(path, Remote):
        return path.expanduser()
    path.forget()
    return path


def _take(path: Path, found: Files) -> None:
    if path.name == names.LATEST and path.is_file():
        path = path.parent  # whose newest run it names
    if path.is_dir():
        _folder(path, found)
    elif _is_ours(path):
        found.add(found.run_folders, path.parent)
    else:
        found.add(found.traces, path)


def _belongs(path: Path) -> bool:
    """Whether a file in a run folder belongs to it and is no foreign trace that somebody put there."""
    return names.rank_of(path) is not None or path.name == LINKS_JSON or not path.name.endswith(_SUFFIXES)


def _is_ours(path: Path) -> bool:
    """Whether the name is that of a file by which a run folder is known."""
    return path.name == names.RUN_JSON or path.name.endswith(".facts.json")


def _expanded(path: Path) -> list[Path]:
    if path.exists():
        return [path]
    matches = path.matches() if isinstance(path, Remote) else _matches(path)
    if not matches:
        raise RunError(f"{path} does not exist", "check the path; quote a glob so that the shell leaves it alone")
    return sorted(matches, key=lambda match: _natural(str(match)))


def _matches(path: Path) -> list[Path]:
    return [Path(match) for match in glob.glob(str(path), recursive=True)]  # noqa: PTH207 - takes absolute patterns


def _folder(folder: Path, found: Files) -> None:
    if not names.is_run_folder(folder):
        folder = _latest(folder) or folder
    if names.is_run_folder(folder):
        found.add(found.run_folders, folder)
        return
    files = {path for path in folder.rglob("*") if path.is_file()}
    inside = sorted(_traces(folder, files), key=lambda path: _natural(str(path)))
    runs = {path.parent for path in files if path.name == names.RUN_JSON}
    nested = sorted((run for run in runs if not _is_kept_inside(run, runs)), key=str)
    if nested and not inside:
        raise RunError(f"{folder} holds {len(nested)} runs", f"name one of them, such as {nested[-1]}")
    if not inside:
        raise RunError(f"{folder} holds no trace files", "traces end in .json or .json.gz")
    for path in _last_iteration(inside, found):
        found.add(found.traces, path)


def _latest(folder: Path) -> Path | None:
    """The run that the folder's file `latest` names: one directly beside it, or none."""
    latest = folder / names.LATEST
    if not latest.exists() or latest.is_dir():
        return None
    if not latest.is_file():  # a pipe or a device: reading it may never end
        raise RunError(f"{latest} is not a regular file", "name the run folder itself")
    with latest.open(encoding="utf-8", errors="replace") as file:
        name = file.read(_LONGEST_NAME).strip()
    if name in ("", "..") or "\0" in name or {PurePosixPath(name).name, PureWindowsPath(name).name} != {name}:
        return None
    return folder / name if names.is_run_folder(folder / name) else None


def _traces(folder: Path, files: set[Path]) -> Iterator[Path]:
    """Of all files in a folder those to read: not hidden ones, nor those that recordings hold."""
    run_folders = {path.parent for path in files if path.name == names.RUN_JSON or _is_facts(path)}
    for path in files:
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        ours = path.name == names.RUN_JSON or _is_recorded(path, files, run_folders)
        if path.name.endswith(_SUFFIXES) and not hidden and not ours:
            yield path


def _is_facts(path: Path) -> bool:
    return path.name.startswith("rank-") and path.name.endswith(".facts.json")


def _is_recorded(path: Path, files: set[Path], run_folders: set[Path]) -> bool:
    """Whether a file is part of a recording and no trace to read by itself.

    Facts, rich windows beside lean ones, what was measured of links, what was run to prove a change. Traces that lost
    their run.json and facts are read like any others.
    """
    if path.name == LINKS_JSON:
        return any(path.parent in (folder, folder.parent) for folder in run_folders)
    if _is_kept_inside(path, run_folders):
        return True
    if names.rank_of(path) is None:
        return False
    lean = path.with_name(path.name.replace(".detail.", "."))
    return path.parent in run_folders or path.name.endswith(".facts.json") or (lean != path and lean in files)


def _is_kept_inside(path: Path, run_folders: set[Path]) -> bool:
    """Whether it lies in what `dptune verify`, or `dptune profile --repeat`, keeps in one of these run folders."""
    kept = (names.VERIFIED, names.REPEATS)
    return any(above.name in kept and above.parent in run_folders for above in path.parents)


def _last_iteration(traces: list[Path], found: Files) -> list[Path]:
    """Of torchtitan's iteration_N folders, the files of the last: each holds all ranks once."""
    iterations = {path: int(match[1]) for path in traces if (match := _ITERATION.match(path.parent.name))}
    if len(set(iterations.values())) < 2:
        return traces
    last = max(iterations.values())
    others = sorted(set(iterations.values()) - {last})
    text = f"read iteration_{last}; left out iteration_{', iteration_'.join(map(str, others))}"
    found.findings.append(Finding(code="iterations-left-out", level="info", text=text))
    return [path for path in traces if iterations.get(path, last) == last]


def _natural(name: str) -> list[tuple[int, str]]:
    """A sort key under which rank10 comes after rank9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]

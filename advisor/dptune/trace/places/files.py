"""From what a user names to the files to read."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath

from dptune.errors import RunError, SeveralRunsError
from dptune.finding import SCHEMA_NEWER, Finding
from dptune.runfile import json_files, recognition
from dptune.runfile import paths as names
from dptune.runfile.links import LINKS_JSON
from dptune.trace.places.failure import RemoteError
from dptune.trace.places.listing import listed, unreadable
from dptune.trace.places.remote import Remote
from dptune.trace.places.source import located, redacted, shown

_SUFFIXES = (".json", ".json.gz", ".gz")
_PACKED = (".zip", ".tar", ".tgz", ".tar.gz", ".zst", ".xz", ".bz2", ".lz4", ".7z")
_LONGEST_NAME = 4096
_ITERATION = re.compile(r"^iteration_(\d+)$")


@dataclass
class Files:
    """The run folders and the foreign trace files that were found, each once, in a stable order.

    `bare` are the folders of recordings of which only run.json is there, beside other traces: those are in `traces`.
    """

    run_folders: list[Path] = field(default_factory=list)
    bare: list[Path] = field(default_factory=list)
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
    except OSError as error:
        if error.filename is None:  # the working directory was removed
            raise
        raise unreadable(Path(os.fsdecode(error.filename)), error) from None


def _named(given: str | os.PathLike[str]) -> Path:
    path = located(given)
    if not isinstance(path, Remote):
        with suppress(RuntimeError):  # `~name` of nobody
            path = path.expanduser()
        return path
    path.forget()
    return path


def _take(path: Path, found: Files) -> None:
    if path.name == names.LATEST and path.is_file():
        path = path.parent  # whose newest run it names
    if path.is_dir():
        _folder(path, found)
    elif _is_facts(path):
        found.add(found.run_folders, path.parent)
    elif path.name == names.RUN_JSON and recognition.is_run_folder(path.parent):
        _folder(path.parent, found)
    else:
        found.add(found.traces, path)


def _belongs(path: Path) -> bool:
    """Whether a file in a run folder belongs to it and is no foreign trace that somebody put there."""
    return names.rank_of(path) is not None or path.name == LINKS_JSON or not path.name.endswith(_SUFFIXES)


def _is_ours(path: Path) -> bool:
    """Whether the name is that of a file by which a run folder is known."""
    return path.name == names.RUN_JSON or _is_facts(path)


def _expanded(path: Path) -> list[Path]:
    if path.exists() or (not isinstance(path, Remote) and path.is_symlink()):
        return [path]
    matches = path.matches() if isinstance(path, Remote) else _matches(path)
    if not matches:
        if str(path) == "-":
            raise RunError("cannot read standard input (-)", "save it to a file, and pass that file")
        raise RunError(f"{path} does not exist", "check the path; quote a glob so that the shell leaves it alone")
    return sorted(matches, key=_by_name)


def _matches(path: Path) -> list[Path]:
    return [Path(match) for match in glob.glob(str(path), recursive=True)]  # noqa: PTH207 - takes absolute patterns


def _folder(folder: Path, found: Files) -> None:
    if not recognition.is_run_folder(folder):
        folder = _latest(folder) or folder
    if recognition.is_run_folder(folder):
        others = [] if recognition.holds_windows(folder) else sorted(_beside_record(folder), key=_by_name)
        if not others:
            found.add(found.run_folders, folder)
            return
        found.bare.append(folder)
        found.findings.append(_without_its_files(folder))
    else:
        others = _last_iteration(_below(folder, found), found)
    for path in others:
        found.add(found.traces, path)


def _below(folder: Path, found: Files) -> list[Path]:
    """The traces in a folder and in those below it, without those of recordings. Raises RunError without any.

    The only recording of a folder without other traces is found as if it had been named.
    """
    all_of_it = listed(folder)
    files, links = all_of_it.files, all_of_it.links
    for error in all_of_it.unread:
        found.findings.append(Finding(code="file-unreadable", level="partial", text=error.message))
    records = [path for path in files if path.name == names.RUN_JSON]
    runs = {path.parent for path in records if recognition.is_run_folder(path.parent)}
    nested = sorted((run for run in runs if not _is_kept_inside(run, runs)), key=str)
    inside = sorted(_traces(folder, files, runs), key=_by_name)
    many = f"{len(nested)} {'run' if len(nested) == 1 else 'runs'}"
    if len(nested) == 1 and not inside:
        text = f"read {shown(nested[0])}: it is the only run in the folder"
        found.findings.append(Finding(code="run-in-folder", level="info", text=text))
        _folder(nested[0], found)
        return []
    if nested and not inside:
        named = f"pass one of them: {nested[-1]}"
        if not isinstance(folder, Remote):
            raise SeveralRunsError(f"{folder} holds {many}", f"{named}; `dptune history {folder}` lists them")
        raise RunError(f"{folder} holds {many}", named)
    if not inside:
        hint = f"links to folders ({shown(links[0])}) are not followed: pass the folders themselves" if links else ""
        raise RunError(f"{folder} holds no trace files", hint or _unpacking(files))
    if nested:
        which = shown(nested[-1]) if len(nested) == 1 else f"{many} ({shown(nested[-1])} and others)"
        text = f"left out {which}: recordings of dptune are reported separately, one at a time"
        found.findings.append(Finding(code="runs-left-out", level="info", text=text))
    for path in links:
        text = f"left out {shown(path)}: links to folders are not followed"
        found.findings.append(Finding(code="link-left-out", level="info", text=text))
    for path in sorted(records, key=_by_name):
        if path.parent not in runs and path not in inside:
            text = f"{shown(path)} {recognition.foreign(path)}: it is ignored"
            found.findings.append(Finding(code="run-json-foreign", level="info", text=text))
    return inside


def _unpacking(files: Collection[Path]) -> str:
    """What to do with files of which none is named as a trace is."""
    packed = sorted(path.name for path in files if path.name.endswith(_PACKED))
    if packed:
        return f"unpack {packed[0]} first: traces end in .json or .json.gz"
    return "traces end in .json or .json.gz"


def _beside_record(folder: Path) -> Iterator[Path]:
    """The files beside a run.json that may be traces."""
    for path in folder.iterdir():
        ours = path.name in (names.RUN_JSON, LINKS_JSON) or path.name.startswith(("launcher-", "."))
        if path.name.endswith(_SUFFIXES) and not ours and not path.is_dir():
            yield path


def _without_its_files(folder: Path) -> Finding:
    """Of a run.json beside traces that dptune did not record."""
    name, code = shown(folder / names.RUN_JSON), "file-unreadable"
    why = f"{name} belongs to a recording whose traces and facts are missing"
    try:
        recognition.record_of(folder)
    except json_files.NewerError as error:
        why, code = f"{folder.name}: {error}", SCHEMA_NEWER
    except OSError as error:
        why = f"{name} cannot be read: {error.strerror or error}"
    except ValueError as error:
        why = f"{folder.name}: {error}"
    return Finding(code=code, level="partial", text=f"{why}; the other traces in the folder are read without it")


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
    return folder / name if recognition.is_run_folder(folder / name) else None


def _traces(folder: Path, files: set[Path], runs: set[Path]) -> Iterator[Path]:
    """Of all files in a folder those to read: not hidden ones, nor those that recordings hold."""
    run_folders = runs | {path.parent for path in files if _is_facts(path)}
    for path in files:
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        ours = path.name == names.RUN_JSON or _is_recorded(path, files, run_folders)
        if path.name == names.RUN_JSON and path.parent not in run_folders:
            ours = not _is_trace(path)
        if path.name.endswith(_SUFFIXES) and not hidden and not ours:
            yield path


def _is_trace(path: Path) -> bool:
    """Whether a file begins as a trace does."""
    try:
        if not path.is_file():
            return False
        with path.open(encoding="utf-8", errors="replace") as file:
            start = file.read(_LONGEST_NAME)
    except OSError:
        return False
    return '"traceEvents"' in start or '"ph"' in start or '"schemaVersion"' in start


def _is_facts(path: Path) -> bool:
    return path.name.startswith("rank-") and path.name.endswith(".facts.json")


def _is_recorded(path: Path, files: set[Path], run_folders: set[Path]) -> bool:
    """Whether a file is part of a recording and no trace to read by itself.

    Facts, detailed windows beside light ones, measured links, results of trials. Traces that lost
    their run.json and facts are read like any others.
    """
    if path.name == LINKS_JSON:
        return any(path.parent in (folder, folder.parent) for folder in run_folders)
    if _is_kept_inside(path, run_folders):
        return True
    if names.rank_of(path) is None:
        return False
    light = path.with_name(path.name.replace(".detail.", "."))
    return path.parent in run_folders or path.name.endswith(".facts.json") or (light != path and light in files)


def _is_kept_inside(path: Path, run_folders: set[Path]) -> bool:
    """Whether it lies in what verify, tune, or `dptune profile --repeat` keeps in one of these run folders."""
    kept = (names.VERIFIED, names.REPEATS)
    return any(
        above.parent in run_folders and (above.name in kept or names.is_tuned(above.name)) for above in path.parents
    )


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


def _by_name(path: Path) -> list[tuple[int, str]]:
    """A sort key under which rank10 comes after rank9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", str(path))]

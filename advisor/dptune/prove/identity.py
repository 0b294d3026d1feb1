"""What a side is, beside its settings: its code, and what runs it. Trials of other code are not its trials."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from dptune.capture.launch import Launch
from dptune.runfile.paths import made_by_dptune
from dptune.runfile.redaction import redacted_environment

Files = Mapping[Path, bytes]  # by path a digest of its content

_PROGRAM = {".py", ".pyx", ".sh"}
_CODE = {*_PROGRAM, ".yaml", ".yml", ".toml", ".cfg", ".ini"}
_WHERE_NAMED = ".json"  # scripts write such files, too
_LARGEST_BYTES = 2**20
_MOST_FILES = 5000
_WORD = re.compile(r"\w+")
_MOST_LINKED = 20_000  # files of all kinds below links to folders: data sets lie behind such links, too
_NOT_CODE = {"__pycache__", "node_modules"}


def files(folder: Path, launch: Launch, run: Path) -> Files:
    """The code in a folder and, where the script lies elsewhere, the programs in that one's folder.

    `run` is left out: it is where trials write. JSON counts where the command names the file.
    """
    found = {}
    for path in _code(folder, launch, run):
        with contextlib.suppress(OSError):
            found[path] = _content(path)
    return found


def digest(folder: Path, launch: Launch, code: Files) -> str:
    """A digest of the code, torch's version, and the variables that change how training computes."""
    whole = hashlib.sha256()
    for word in (launch.interpreter.torch if launch.interpreter else None, *sorted(redacted_environment().items())):
        whole.update(repr(word).encode())
    for path, content in code.items():
        whole.update(_named(path, folder).encode(errors="surrogateescape") + b"\0")
        whole.update(content)
    return whole.hexdigest()[:16]


def changed(folder: Path, code: Files, programs_alone: bool = False) -> list[str]:
    """Those of the files that are not what they were; of programs alone where a run may write the others itself."""
    found = []
    for path, content in code.items():
        if programs_alone and path.suffix not in _PROGRAM:
            continue
        try:
            same = _content(path) == content
        except OSError:
            same = False
        if not same:
            found.append(_shown(path, folder))
    return sorted(found)


def written_since(folder: Path, code: Files, launch: Launch, when: float) -> list[str]:
    """The files that the script uses and that were written after `when` (seconds since 1970)."""
    found = []
    for path in _used(code, launch):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime > when:
                found.append(_shown(path, folder))
    return sorted(found)


def _used(code: Files, launch: Launch) -> list[Path]:
    """The files that the command or a used file names: as a module, a package or a file name, anywhere in its text.

    All files if the command names no program among them.
    """
    words = set(_WORD.findall(" ".join(launch.shown)))
    used: dict[Path, None] = {}
    while more := [path for path in code if path not in used and _stem(path) in words]:
        for path in more:
            used[path] = None
            with contextlib.suppress(OSError):
                words.update(_WORD.findall(path.read_text(encoding="utf-8", errors="replace")))
    return list(used if any(path.suffix in _PROGRAM for path in used) else code)


def _stem(path: Path) -> str:
    """The word by which other files refer to this one: the last word of its name, or of its package."""
    words: list[str] = _WORD.findall(path.parent.name if path.stem == "__init__" else path.stem)
    return words[-1] if words else ""


def content(data: bytes) -> bytes:
    """A digest of what a file holds."""
    return hashlib.sha256(data).digest()


def _content(path: Path) -> bytes:
    return content(path.read_bytes())


def _named(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def _shown(path: Path, folder: Path) -> str:
    return _named(path, folder).encode(errors="surrogateescape").decode(errors="backslashreplace")


def _code(folder: Path, launch: Launch, run: Path) -> Iterator[Path]:
    command, run_folder = " ".join(launch.shown), run.resolve()
    yield from _below(folder, run_folder, command)
    for root in _elsewhere(folder, launch):
        yield from _programs(root)


def _elsewhere(folder: Path, launch: Launch) -> Iterator[Path]:
    """The folders of files that the command names and that lie elsewhere: Python takes modules from there."""
    seen = {folder.resolve()}
    for word in launch.shown:
        with contextlib.suppress(OSError, ValueError):
            path = folder / word
            place = path.resolve().parent
            if path.suffix in _PROGRAM and path.is_file() and not any(place.is_relative_to(root) for root in seen):
                seen.add(place)
                yield place


def _programs(root: Path) -> Iterator[Path]:
    """What a script in that folder could import: through folders that hold Python files, for it may be any folder."""
    seen = 0
    for place, folders, names in os.walk(root):
        found = sorted(name for name in names if Path(name).suffix in _PROGRAM)
        folders[:] = sorted(name for name in folders if name not in _NOT_CODE and not name.startswith("."))
        if Path(place) != root and not found:
            folders.clear()
        for name in found:
            yield Path(place) / name
            seen += 1
        if seen > _MOST_FILES:
            return


def _below(root: Path, run: Path, command: str) -> Iterator[Path]:
    seen = linked = 0
    entered: set[Path] = set()
    for place, folders, names in os.walk(root, followlinks=True):
        here = Path(place)
        there = here.resolve()
        if made_by_dptune(here) or there in entered:
            folders.clear()
            continue
        entered.add(there)
        if not there.is_relative_to(root.resolve()):
            linked += len(names)
        folders[:] = sorted(
            name
            for name in folders
            if name not in _NOT_CODE
            and not name.startswith(".")
            and (here / name).resolve() != run
            and not (here / name / "pyvenv.cfg").exists()
        )
        if linked > _MOST_LINKED and not there.is_relative_to(root.resolve()):
            folders.clear()
            continue
        for name in sorted(names):
            path = here / name
            counts = path.suffix in _CODE or (path.suffix == _WHERE_NAMED and name in command)
            if counts and path.is_file() and path.stat().st_size <= _LARGEST_BYTES:
                yield path
                seen += 1
        if seen > _MOST_FILES:
            return

"""A working copy for trials, so that what a script writes beside itself does not reach the user's own files.

Small files are copied. Large ones, folders of very many files, environments and repositories are linked: a script that
writes over such a file writes over the user's, which is found out afterwards and said.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

LARGEST_COPIED_BYTES = 8 * 2**20
MOST_COPIED_BYTES = 512 * 2**20
MOST_ENTRIES = 2000  # of a folder that is not linked as a whole
_LEFT_OUT = {"dptune-runs", "__pycache__", ".dptune-cache"}
_LINKED = {".git", ".hg", ".svn", "node_modules"}


@dataclass
class Scratch:
    """The copy, and the files of the user's that it links to, each with its size and time of change."""

    path: Path
    linked: dict[Path, tuple[int, int]] = field(default_factory=dict)
    copied_bytes: int = 0

    def written_over(self) -> list[Path]:
        """The user's own files that changed meanwhile."""
        return [path for path, before in self.linked.items() if _state(path) != before]


def make(source: Path, target: Path) -> Scratch:
    """Copy a folder to a new one. Raises OSError where there is no room, or something cannot be read."""
    made = Scratch(target)
    _fill(made, source.resolve(), target, apart=target.resolve())
    return made


def _fill(made: Scratch, source: Path, target: Path, apart: Path) -> None:
    target.mkdir(parents=True)
    for entry in sorted(os.scandir(source), key=lambda one: one.name):
        path, copy = Path(entry.path), target / entry.name
        if entry.name in _LEFT_OUT or apart.is_relative_to(path):
            continue
        if entry.is_dir(follow_symlinks=False) and not _as_a_whole(path):
            _fill(made, path, copy, apart)
        elif entry.is_file(follow_symlinks=False) and _fits(made, entry.stat().st_size):
            shutil.copy2(path, copy)
            made.copied_bytes += entry.stat().st_size
        elif entry.is_dir() or entry.is_file() or entry.is_symlink():
            copy.symlink_to(path.resolve())
            if entry.is_file():
                made.linked[path.resolve()] = _state(path)


def _fits(made: Scratch, size: int) -> bool:
    return size <= LARGEST_COPIED_BYTES and made.copied_bytes + size <= MOST_COPIED_BYTES


def _as_a_whole(folder: Path) -> bool:
    if folder.name in _LINKED or (folder / "pyvenv.cfg").exists() or (folder / "conda-meta").is_dir():
        return True
    with os.scandir(folder) as entries:
        return sum(1 for _ in zip(range(MOST_ENTRIES + 1), entries, strict=False)) > MOST_ENTRIES


def _state(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return -1, -1
    return found.st_size, found.st_mtime_ns

"""A working copy for trials, so that what a script writes beside itself does not reach the user's own files.

Small files are copied, those nearest the top first, and of large ones checkpoints, which scripts write. Other large
ones, folders of very many files, environments, repositories and links that lead out of the folder are linked: a script
that writes over such a file writes over the user's. So what is linked is looked at before and after, as far as that is
quick.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from dptune.errors import RunError
from dptune.runfile.paths import RUN_JSON, made_by_dptune

LARGEST_COPIED_BYTES = 8 * 2**20
MOST_COPIED_BYTES = 512 * 2**20
MOST_ENTRIES = 2000  # of a folder that is not linked as a whole
MOST_COPIED_ENTRIES = 20_000
MOST_WATCHED_ENTRIES = 4000  # of one linked folder, with what lies below it
MOST_WATCHED_IN_ALL = 20_000
MOST_NAMED = 10  # changed files of one linked folder, more are counted; and files that were not copied

# What holds a state that a script saves, and saves again: it is copied also where it is large.
_SAVED = (".pt", ".pth", ".ckpt", ".safetensors", ".pth.tar")
LARGE = "it is too large to copy"
LARGE_TOGETHER = "the total size limit of the copy is reached"
MANY = "its folder has too many files"
MANY_TOGETHER = "the file limit of the copy is reached"
LINK = "it is a link"
FOLDER_LINK = "its folder is a link"
UNREADABLE = "it cannot be read"
_OWN_CARE = "it is a repository or an environment"
_SYSTEMS_OWN = "system path"

_MADE_BY_DPTUNE = {"__pycache__", ".dptune-cache"}
_LINKED = {".git", ".hg", ".svn", "node_modules"}
_SYSTEM = (Path("/proc"), Path("/sys"))  # what looks like an empty file there may block, or never end
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class _State(NamedTuple):
    """What shows that a file was written, or that a folder got or lost an entry."""

    size: int
    changed_ns: int
    inode: int
    is_folder: bool


@dataclass
class _Watched:
    """One thing of the user's that the copy links to: why, each path that is looked at, and the names in folders.

    A folder of which not every entry is looked at has no names.
    """

    why: str
    states: dict[Path, _State | None]
    names: dict[Path, set[str]] = field(default_factory=dict)


@dataclass
class Scratch:
    """The copy, and what of the user's it links to.

    `left_out` has what could not be read, or is neither a file nor a folder, and `unwatched` what is linked and looked
    at in part or not at all; each with the reason.
    """

    path: Path
    left_out: dict[Path, str] = field(default_factory=dict)
    unwatched: dict[Path, str] = field(default_factory=dict)
    _watched: dict[Path, _Watched] = field(default_factory=dict)

    def exposed(self) -> dict[Path, str]:
        """The user's own checkpoints that the copy links to, and why: a script that saves there writes over them."""
        files = {path: watched.why for path, watched in self._watched.items() if path.name.endswith(_SAVED)}
        return {path: why for path, why in sorted(files.items()) if path.is_file()}

    def written_over(self) -> dict[Path, str]:
        """The user's own files that were changed, removed or added meanwhile, each with why it was not a copy.

        Of a linked folder with more than ten such files the folder itself, with their number.
        """
        found: dict[Path, str] = {}
        for path, watched in sorted(self._watched.items(), key=lambda each: len(each[1].states)):  # single files first
            changed = list(dict.fromkeys(_changed(watched)))
            if len(changed) > MOST_NAMED:
                found[path] = f"{watched.why}; {len(changed):,} of its files"
            else:
                found = {**dict.fromkeys(changed, watched.why), **found}
        return found


def make(source: Path, target: Path, beside: bool = False) -> Scratch:
    """Copy a folder to a new one; what lies there from before goes. Raises RunError where no copy can be made.

    With `beside` the copy lies deeper in `target`, and what is beside the folder, and beside each folder above it, is
    linked there: `../data` is found. What is written there is written over the user's own.
    """
    source = source.resolve()
    made = Scratch(target / source.relative_to(source.anchor) if beside else target)
    try:
        clear(target)
        if beside:
            _link_beside(source, target)
        _Copying(made, source, made.path.resolve(), target.resolve()).run()
    except OSError as error:
        clear(target)
        where = f": {error.filename}" if error.filename else ""
        hint = "free disk space next to the recording" if error.errno in _NO_ROOM else ""
        raise RunError(f"{source} cannot be copied for trials: {error.strerror or error}{where}", hint) from None
    except BaseException:
        clear(target)
        raise
    return made


def rewrite(copy: Scratch, files: Mapping[str, bytes]) -> None:
    """Give files of the copy another content. Raises RunError for one that is a link to the user's."""
    for name, content in files.items():
        path = copy.path / name
        if not path.resolve().is_relative_to(copy.path.resolve()):
            raise RunError(
                f"{name} is linked, not copied, for trials, so it cannot be patched", "verify the change with --set"
            )
        mode = path.stat().st_mode
        path.unlink()  # it may be read-only
        path.write_bytes(content)
        path.chmod(mode)


def clear(folder: Path) -> None:
    """Remove a copy, if there is one, but nothing that it links to; also where a trial took the right to do so."""
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
        return
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        folder.chmod(0o700)
        for path, names, _ in os.walk(folder):
            for name in names:
                inside = Path(path, name)
                if not inside.is_symlink():
                    with contextlib.suppress(OSError):
                        inside.chmod(0o700)
        shutil.rmtree(folder, ignore_errors=True)


def _link_beside(source: Path, target: Path) -> None:
    """Mirror the folders above the source in `target`, with links to all else that they hold and can be read."""
    place = target.resolve()
    for above in source.parents:
        copy = target / above.relative_to(above.anchor)
        copy.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):
            for entry in _listed(above, MOST_COPIED_ENTRIES):
                path = Path(entry.path)
                if not (source.is_relative_to(path) or place.is_relative_to(path)):
                    (copy / entry.name).symlink_to(path)


class _Copying:
    """The work of copying: folder by folder from the top, so that where a limit is met the nearest files are copied."""

    def __init__(self, made: Scratch, source: Path, target: Path, top: Path) -> None:
        self.made, self.source, self.target, self.top = made, source, target, top
        self.run_folder = _run_folder(source, target)
        self.entries = self.copied_bytes = self.watched_entries = 0
        self.waiting = deque([(source, target)])
        self.links: list[tuple[Path, Path]] = []

    def run(self) -> None:
        while self.waiting:
            self._folder(*self.waiting.popleft())
        for path, copy in self.links:
            self._follow(path, copy)

    def _folder(self, path: Path, copy: Path) -> None:
        try:
            entries = [] if _why_whole(path) else _listed(path, None if path == self.source else MOST_ENTRIES)
        except OSError as error:
            if path == self.source:
                raise
            self._link(path, copy, UNREADABLE, error)
            return
        if path != self.source and (why := self._whole(path, len(entries))):
            self._link(path, copy, why)
            return
        copy.mkdir(parents=path == self.source)
        for entry in entries:
            self.entries += 1
            self._entry(entry, Path(entry.path), copy / entry.name)

    def _whole(self, path: Path, entries: int) -> str:
        """Why the folder is linked as a whole; nothing where it is copied."""
        if why := _why_whole(path):
            return why
        if entries > MOST_ENTRIES:
            return MANY
        return MANY_TOGETHER if self.entries + entries > MOST_COPIED_ENTRIES else ""

    def _entry(self, entry: os.DirEntry[str], path: Path, copy: Path) -> None:
        if entry.name in _MADE_BY_DPTUNE or path == self.run_folder or made_by_dptune(path):
            return
        if entry.is_symlink():
            self.links.append((path, copy))
        elif entry.is_dir(follow_symlinks=False):
            self.waiting.append((path, copy))
        elif entry.is_file(follow_symlinks=False):
            self._file(path, copy)
        else:
            self.made.left_out[path] = "it is neither a file nor a folder"

    def _file(self, path: Path, copy: Path) -> None:
        """Copy a file, or link to it."""
        try:
            why = self._why_not_copied(path)
            if not why:
                shutil.copy2(path, copy)
                self.copied_bytes += copy.stat().st_size
                return
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise
            copy.unlink(missing_ok=True)
            self._link(path, copy, UNREADABLE, error)
            return
        self._link(path, copy, why)

    def _why_not_copied(self, path: Path) -> str:
        size = path.stat().st_size
        if size > LARGEST_COPIED_BYTES and not path.name.endswith(_SAVED):
            return LARGE
        if self.copied_bytes + size > MOST_COPIED_BYTES:
            return LARGE_TOGETHER
        return MANY_TOGETHER if self.entries > MOST_COPIED_ENTRIES else ""

    def _follow(self, path: Path, copy: Path) -> None:
        """A link: within the folder to its own copy, to a small file outside a copy of that, else to where it leads."""
        leads_to = Path(os.path.realpath(path))
        try:
            found = path.stat()
        except FileNotFoundError:
            found = None
        except OSError as error:
            copy.symlink_to(leads_to)
            self.made.left_out[path] = f"it cannot be followed: {error.strerror}"
            return
        if inside := self._copy_of(leads_to):
            copy.symlink_to(inside)
        elif found is None:
            self._link(path, copy, LINK)
        elif stat.S_ISREG(found.st_mode) and not _is_systems(leads_to):
            self._file(leads_to, copy)
        elif stat.S_ISDIR(found.st_mode):
            self._link(path, copy, _why_whole(leads_to) or FOLDER_LINK)
        else:
            copy.symlink_to(leads_to)

    def _copy_of(self, path: Path) -> Path | None:
        """Where the copy has what lies there, or would have it."""
        if not path.is_relative_to(self.source):
            return None
        copy = self.target / path.relative_to(self.source)
        there = os.path.lexists(copy) or (os.path.lexists(copy.parent) and not os.path.lexists(path))
        return copy if there else None

    def _link(self, path: Path, copy: Path, why: str, error: OSError | None = None) -> None:
        """Link to what is the user's, and remember how it is now."""
        original = Path(os.path.realpath(path))
        copy.symlink_to(original)
        if error is not None:
            self.made.left_out[path] = f"{why}: {error.strerror}"
        if apart := _why_whole(original):
            self.made.unwatched[original] = apart
        elif original not in self.made._watched:
            self.made._watched[original] = self._watch(original, why)

    def _watch(self, top: Path, why: str) -> _Watched:
        """The state of a file, or of a folder and what lies in it, up to some number of entries."""
        top_state = _state(top)
        watched = _Watched(why, {top: top_state})
        most = min(MOST_WATCHED_ENTRIES, MOST_WATCHED_IN_ALL - self.watched_entries)
        folders = deque([top] if top_state and top_state.is_folder else [])
        while folders and (left := most + 1 - len(watched.states)) > 0:
            folder = folders.popleft()
            try:
                entries = _listed(folder, left)
            except OSError as error:
                self.made.unwatched[folder] = f"{UNREADABLE}: {error.strerror}"
                continue
            if len(entries) <= left:
                watched.names[folder] = {entry.name for entry in entries}
            for entry in entries[:left]:
                path = Path(entry.path)
                state = None if self._is_apart(path) else _state(path)
                if state is None or (state.is_folder and entry.is_symlink()):
                    continue
                watched.states[Path(os.path.realpath(path)) if entry.is_symlink() else path] = state
                if state.is_folder:
                    folders.append(path)
        if folders or (top_state and top_state.is_folder and top not in watched.names):
            self.made.unwatched[top] = f"{why}, and only {len(watched.states) - 1:,} of its files are looked at"
        self.watched_entries += len(watched.states) - 1
        return watched

    def _is_apart(self, path: Path) -> bool:
        """Whether it changes by what dptune does, or by what a script does not mean to write."""
        by_dptune = path.name in _MADE_BY_DPTUNE or path in (self.run_folder, self.top.parent, self.top)
        return by_dptune or bool(_why_whole(path))


def _changed(watched: _Watched) -> Iterator[Path]:
    """Each path that is not as it was; a folder only where it is not known which of its entries changed."""
    for path, before in watched.states.items():
        now = _state(path)
        if now == before:
            continue
        if before and now and before.is_folder and now.is_folder and path in watched.names:
            with contextlib.suppress(OSError):
                names = {entry.name for entry in _listed(path)} ^ watched.names[path]
                yield from (path / name for name in sorted(names - _MADE_BY_DPTUNE))
        else:
            yield path


def _listed(folder: Path, most: int | None = None) -> list[os.DirEntry[str]]:
    """The entries of a folder by name; where it has more than `most`, any of them, one more than that."""
    with os.scandir(folder) as entries:
        return sorted(islice(entries, None if most is None else most + 1), key=lambda entry: entry.name)


def _run_folder(source: Path, target: Path) -> Path:
    """The recording inside the source that the copy is made for; the copy itself where it belongs to none."""
    above = [folder for folder in target.parents if folder != source and folder.is_relative_to(source)]
    return next((folder for folder in above if (folder / RUN_JSON).is_file()), target)


def _why_whole(folder: Path) -> str:
    """Why a folder of this kind is linked, and not looked at; nothing for others."""
    if _is_systems(folder):
        return _SYSTEMS_OWN
    environment = any(os.path.exists(folder / name) for name in ("pyvenv.cfg", "conda-meta"))  # noqa: PTH110
    return _OWN_CARE if folder.name in _LINKED or environment else ""


def _is_systems(path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in _SYSTEM)


def _state(path: Path) -> _State | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return _State(found.st_size, found.st_mtime_ns, found.st_ino, stat.S_ISDIR(found.st_mode))

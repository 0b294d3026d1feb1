"""Columns of traces that were read before, so that a large trace opens at once the next time.

The arguments of operators are kept with them, where they were as the file was read.

One file of columns for each trace, in `.dptune-cache/` beside it where the folder of the trace is this user's; else, or
where that cannot be written or the trace is remote, in the user's cache folder. Both are used only where they belong to
this user alone, and so does the file. Its name holds what it was made from: where the trace is, what identifies its
content (device, inode, size and times of change, or what a remote store says of it), and a digest of the loader's
own source, so that a changed loader never meets old columns. A checksum of all its bytes is right before any of them is
looked at. An entry is written beside its place and moved there whole, so writers and readers may run at once. Nothing
here can fail a report: an entry that cannot be read or written is as good as none.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, BinaryIO, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
import platformdirs
from numpy.typing import NDArray

from dptune.finding import Finding
from dptune.trace.columns import KEPT_ARGUMENTS, SEPARATOR, Collectives, Columns, Counters, Memory, Operators
from dptune.trace.events import Blocks, Device, Distributed, Trace
from dptune.trace.loading import private_folder
from dptune.trace.loading.private_folder import PrivateFolder
from dptune.trace.places import source

FOLDER = ".dptune-cache"
LEAST_TEXT_BYTES = 2**20  # a smaller trace is read as fast as its entry
NEW_SECONDS = 2.0  # the coarsest times of change that file systems keep
ABANDONED_SECONDS = 86_400.0  # no writer takes as long
USER_FOLDER_BYTES = 8 * 2**30  # in the user's cache folder: what was not used for longest goes first

_TABLES = {
    "columns": Columns,
    "collectives": Collectives,
    "memory": Memory,
    "counters": Counters,
    "blocks": Blocks,
    "operators": Operators,
}
_SUFFIX = ".columns"
_ALIGNED = 16
_unfinished: set[tuple[PrivateFolder, str]] = set()


class _Head(msgspec.Struct):
    """The first lines of an entry: type and length of each array, the words of each table, the rest of the trace."""

    arrays: dict[str, tuple[str, int]]
    words: dict[str, tuple[str, ...]]
    events: Annotated[int, msgspec.Meta(ge=0)]
    partial: str
    devices: tuple[Device, ...]
    distributed: Distributed
    base_ns: int
    host: str
    thread_names: list[tuple[str, str, str]]
    findings: tuple[Finding, ...]


class Entry:
    """Where the columns of a trace are kept, as its file is now."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._identity = source.identity(name)
        self._is_new = _is_new(name)

    def load(self) -> Trace | None:
        """The trace as it was read before; None where it was not, or is another by now."""
        for folder, file in self._places():
            try:
                with private_folder.opened(folder) as place:
                    trace = _read(place.read(file), self.name)
                    with contextlib.suppress(OSError):
                        place.touch(file)
            except Exception:  # what somebody else may have put there can raise anything
                continue
            return trace
        return None

    def store(self, trace: Trace) -> None:
        """Keep what was read since, where it is large enough to be worth it and its file did not change meanwhile.

        Not of a trace that breaks off: perhaps only its connection did.
        """
        large = len(trace.blocks.end) and int(trace.blocks.end[-1]) >= LEAST_TEXT_BYTES
        if not large or trace.partial or self._is_new or source.identity(self.name) != self._identity:
            return
        for folder, file in self._places():
            try:
                with private_folder.opened(folder, make=True) as place:
                    if folder.name == FOLDER:
                        _hide(place)
                    _write(place, file, trace)
                    _tidy(place, file)
                    if folder.name != FOLDER:
                        _prune(place)
            except Exception:  # names that are no text, a file system that does what others do not
                continue
            return

    def _places(self) -> Iterator[tuple[Path, str]]:
        """The folders this entry may be in, beside the trace first, and the name of its file."""
        if self._identity is None:
            return
        remote = source.is_url(self.name)
        where = source.redacted(self.name) if remote else str(Path(self.name).resolve())
        place = hashlib.sha256(where.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        content = hashlib.sha256(f"{self._identity}\0{_loader()}".encode("utf-8", "surrogateescape")).hexdigest()[:16]
        file = f"{place}-{content}{_SUFFIX}"
        if not remote and _may_hold_entries(Path(where).parent):
            yield Path(where).parent / FOLDER, file
        with contextlib.suppress(OSError, RuntimeError):  # there may be no home
            yield (platformdirs.user_cache_path("dptune") / "columns").resolve(), file


def abandon() -> None:
    """Remove what this process is writing, which is about to end."""
    for place, temporary in list(_unfinished):
        with contextlib.suppress(OSError):
            place.remove(temporary)


def _may_hold_entries(folder: Path) -> bool:
    """Whether a folder of traces is this user's, and not one in which everybody may put things."""
    try:
        status = folder.stat()
    except OSError:
        return False
    return private_folder.is_ours(status) and not (hasattr(os, "geteuid") and status.st_mode & stat.S_IWOTH)


def _is_new(name: str) -> bool:
    """Whether a local file changed just now: another change might carry the same time."""
    if source.is_url(name):
        return False
    with contextlib.suppress(OSError):
        return time.time() - Path(name).stat().st_mtime < NEW_SECONDS
    return True


@cache
def _dtypes() -> dict[str, str]:
    """The type of each column's numbers, as numpy writes it; "" of words."""
    found = {}
    for table, kind in _TABLES.items():
        hints = get_type_hints(kind)
        for column in fields(kind):
            is_array = get_origin(hints[column.name]) is np.ndarray
            scalar = get_args(get_args(hints[column.name])[1])[0] if is_array else None
            found[f"{table}.{column.name}"] = np.dtype(scalar).str if is_array else ""
    return found


@cache
def _loader() -> str:
    """A digest of the source of the loader, whose columns these are."""
    digest = hashlib.sha256(np.__version__.encode())
    for file in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(file.name.encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _write(place: PrivateFolder, file: str, trace: Trace) -> None:
    temporary = f"writing-{uuid.uuid4().hex}.tmp"
    _unfinished.add((place, temporary))
    try:
        with place.new(temporary) as out:
            _fill(out, *_contents(trace))
        place.replace(temporary, file)
    except BaseException:
        place.remove(temporary)
        raise
    finally:
        _unfinished.discard((place, temporary))


def _hide(place: PrivateFolder) -> None:
    """Keep a folder beside traces out of git."""
    with contextlib.suppress(OSError), place.new(".gitignore") as out:  # it is there already
        out.write(b"*\n")


def _tidy(place: PrivateFolder, file: str) -> None:
    """Remove entries of the same file before it changed, or by an older loader; and what killed writers left."""
    before = time.time() - ABANDONED_SECONDS
    for old in place.names():
        with contextlib.suppress(OSError):
            same = old.startswith(f"{file.partition('-')[0]}-") and old != file
            writing = old.startswith("writing-") and old.endswith(".tmp")
            if same or (writing and place.status(old).st_mtime < before):
                place.remove(old)


def _contents(trace: Trace) -> tuple[_Head, list[NDArray[Any]]]:
    """What the first lines of an entry tell, and the arrays that follow."""
    arrays: dict[str, NDArray[Any]] = {}
    words: dict[str, Any] = {}
    for table in _TABLES:
        columns = getattr(trace, table)
        for column in fields(columns):
            value = getattr(columns, column.name)
            (words if isinstance(value, tuple) else arrays)[f"{table}.{column.name}"] = value
    head = _Head(
        arrays={name: (array.dtype.str, len(array)) for name, array in arrays.items()},
        words=words,
        events=trace.events,
        partial=trace.partial,
        devices=trace.devices,
        distributed=trace.distributed,
        base_ns=trace.base_ns,
        host=trace.host,
        thread_names=[(*key, value) for key, value in trace.thread_names.items()],
        findings=trace.findings,
    )
    return head, list(arrays.values())


def _fill(out: BinaryIO, head: _Head, arrays: list[NDArray[Any]]) -> None:
    """Write a checksum, the length of the head, the head, and each array, all at multiples of 16 bytes."""
    said = msgspec.json.encode(head)
    checksum = 0
    out.write(bytes(_ALIGNED))
    parts: list[bytes | memoryview] = [len(said).to_bytes(_ALIGNED, "little"), said]
    for part in parts + [array.view(np.uint8).data for array in arrays]:
        for piece in (part, bytes(-len(part) % _ALIGNED)):
            checksum = zlib.crc32(piece, checksum)
            out.write(piece)
    out.seek(0)
    out.write(checksum.to_bytes(_ALIGNED, "little"))


def _taken(whole: bytearray) -> tuple[_Head, dict[str, NDArray[Any]]]:
    """The header of an entry, and its arrays, which lie in `whole`. Nothing is looked at before the checksum is right.

    Raises ValueError, of which msgspec's are, where there is anything but the columns of a trace in their types.
    """
    rest = memoryview(whole)[_ALIGNED:]
    if len(rest) < _ALIGNED or zlib.crc32(rest) != int.from_bytes(whole[:_ALIGNED], "little"):
        raise ValueError("the checksum does not fit")
    at = 2 * _ALIGNED
    size = int.from_bytes(rest[:_ALIGNED], "little")
    head = msgspec.json.decode(whole[at : at + size], type=_Head)
    wanted = {name: dtype for name, dtype in _dtypes().items() if dtype}
    if {
        name: dtype for name, (dtype, _) in head.arrays.items()
    } != wanted or head.words.keys() != _dtypes().keys() - wanted:
        raise ValueError("the columns differ")
    arrays = {}
    for name, (dtype, count) in head.arrays.items():
        at += size + -size % _ALIGNED
        size = count * np.dtype(dtype).itemsize
        if count < 0 or at + size > len(whole):
            raise ValueError("a column is longer than the entry, or its length is negative")
        arrays[name] = np.frombuffer(whole, dtype, count, at) if count else np.empty(0, dtype)
    return head, arrays


def _read(whole: bytearray, name: str) -> Trace:
    head, arrays = _taken(whole)
    tables: dict[str, Any] = {}
    for table, kind in _TABLES.items():
        tables[table] = kind(
            **{
                column.name: tuple(head.words[key]) if key in head.words else arrays[key]
                for column in fields(kind)
                for key in [f"{table}.{column.name}"]
            }
        )
    _check(**tables)
    return Trace(
        path=name,
        events=head.events,
        partial=head.partial,
        devices=head.devices,
        distributed=head.distributed,
        base_ns=head.base_ns,
        host=head.host,
        thread_names={(pid, tid): label for pid, tid, label in head.thread_names},
        findings=head.findings,
        **tables,
    )


def _check(columns: Columns, collectives: Collectives, operators: Operators, **others: Any) -> None:
    """Raise ValueError where columns of a table have different lengths, or numbers lead nowhere."""
    for table in (columns, collectives, *others.values()):
        arrays = [getattr(table, each.name) for each in fields(table)]
        if len({len(array) for array in arrays if isinstance(array, np.ndarray)}) > 1:
            raise ValueError("columns of one table have different lengths")
    rows = len(columns)
    if rows and int(columns.dur_ns.min()) < 0:
        raise ValueError("a duration is negative")
    of_events = collectives.row
    if len(of_events) and not 0 <= int(of_events.min()) <= int(of_events.max()) < rows:
        raise ValueError("a collective refers to no event")
    _check_operators(operators, rows)
    for ids, words in (
        ((columns.name_id,), columns.names),
        ((columns.category_id,), columns.categories),
        ((columns.pid_id, columns.tid_id), columns.labels),
        (
            [getattr(collectives, name) for name in ("kind", "dtype", "group", "group_ranks", "dims", "types")],
            collectives.words,
        ),
    ):
        if any(len(column) and not -1 <= column.min() <= column.max() < len(words) for column in ids):
            raise ValueError("indices of texts are out of range")


def _check_operators(operators: Operators, rows: int) -> None:
    """Raise ValueError where the rows or the texts of operators are none."""
    row, text, end = operators.row, operators.text, operators.end
    if not len(row) == len(operators.number) == len(text):
        raise ValueError("columns of one table have different lengths")
    if (np.diff(row, prepend=-1) < 1).any() or (len(row) and row[-1] >= rows):
        raise ValueError("operators refer to no event, or are not in the order of events")
    if len(text) and not 0 <= int(text.min()) <= int(text.max()) < len(end):
        raise ValueError("indices of operators' texts are out of range")
    if (np.diff(end, prepend=0) < 0).any() or (len(end) and end[-1] > len(operators.written)):
        raise ValueError("operators' texts are out of range")
    separators = np.searchsorted(np.flatnonzero(operators.written == ord(SEPARATOR)), end)
    if (np.diff(separators, prepend=0) != len(KEPT_ARGUMENTS) - 1).any():
        raise ValueError("an operator's text has too few or too many arguments")


def _prune(place: PrivateFolder) -> None:
    """Remove what was not used for longest until the user's folder is small enough."""
    with contextlib.suppress(OSError):
        found = [(place.status(file), file) for file in place.names() if file.endswith(_SUFFIX)]
        total = sum(status.st_size for status, _ in found)
        for status, file in sorted(found, key=lambda entry: entry[0].st_mtime)[:-1]:
            if total <= USER_FOLDER_BYTES:
                return
            place.remove(file)
            total -= status.st_size

"""Columns of traces that were read before, so that a large trace opens at once the next time.

One file of columns for each trace, in `.dptune-cache/` beside it, or in the user's cache folder where that cannot
be written or the trace is remote. Its name holds what it was made from: where the trace is, what tells its content from
another (device, inode, size and times of change, or what a remote store says of it), and a digest of the loader's own
source, so that a changed loader never meets old columns. A checksum of all its bytes is right before any of them is
looked at. An entry is written beside its place and moved there whole, so writers and readers may run at once. Nothing
here can fail a report: an entry that cannot be read or written is as good as none.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import platformdirs
from numpy.typing import NDArray

from dptune.finding import Finding
from dptune.trace import source
from dptune.trace.columns import Collectives, Columns, Counters, Memory
from dptune.trace.events import Blocks, Device, Distributed, Trace

FOLDER = ".dptune-cache"
LEAST_TEXT_BYTES = 2**20  # a smaller trace is read as fast as its entry
NEW_SECONDS = 2.0  # the coarsest times of change that file systems keep
ABANDONED_SECONDS = 86_400.0  # no writer takes as long
USER_FOLDER_BYTES = 8 * 2**30  # in the user's cache folder: what was not used for longest goes first

_TABLES = {"columns": Columns, "collectives": Collectives, "memory": Memory, "counters": Counters, "blocks": Blocks}
_SUFFIX = ".columns"
_ALIGNED = 16
_unfinished: set[Path] = set()


class Entry:
    """Where the columns of a trace are kept, as its file is now."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._identity = source.identity(name)
        self._is_new = _is_new(name)

    def load(self) -> Trace | None:
        """The trace as it was read before; None where it was not, or is another by now."""
        for entry in self._places():
            try:
                trace = _read(entry, self.name)
            except Exception:  # what somebody else may have put there can raise anything
                continue
            with contextlib.suppress(OSError):
                os.utime(entry)
            return trace
        return None

    def store(self, trace: Trace) -> None:
        """Keep what was read since, where it is large enough to be worth it and its file did not change meanwhile.

        Not of a trace that breaks off: perhaps only its connection did.
        """
        large = len(trace.blocks.end) and int(trace.blocks.end[-1]) >= LEAST_TEXT_BYTES
        if not large or trace.partial or self._is_new or source.identity(self.name) != self._identity:
            return
        for entry in self._places():
            try:
                _write(entry, trace)
                if entry.parent.name != FOLDER:
                    _prune(entry.parent)
            except Exception:  # names that are no text, a file system that does what others do not
                continue
            return

    def _places(self) -> Iterator[Path]:
        """The file of this entry: beside the trace first."""
        if self._identity is None:
            return
        remote = source.is_url(self.name)
        where = source.redacted(self.name) if remote else str(Path(self.name).resolve())
        place = hashlib.sha256(where.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        content = hashlib.sha256(f"{self._identity}\0{_loader()}".encode("utf-8", "surrogateescape")).hexdigest()[:16]
        file = f"{place}-{content}{_SUFFIX}"
        if not remote:
            yield Path(where).parent / FOLDER / file
        with contextlib.suppress(OSError, RuntimeError):  # there may be no home
            yield platformdirs.user_cache_path("dptune") / "columns" / file


def abandon() -> None:
    """Remove what this process is writing, which is about to end."""
    for temporary in list(_unfinished):
        with contextlib.suppress(OSError):
            temporary.unlink()


def _is_new(name: str) -> bool:
    """Whether a local file changed just now: another change might carry the same time."""
    if source.is_url(name):
        return False
    with contextlib.suppress(OSError):
        return time.time() - Path(name).stat().st_mtime < NEW_SECONDS
    return True


@cache
def _loader() -> str:
    """A digest of the source of the loader, whose columns these are."""
    digest = hashlib.sha256(np.__version__.encode())
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.name.encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _write(entry: Path, trace: Trace) -> None:
    entry.parent.mkdir(parents=True, exist_ok=True)
    ignore = entry.parent / ".gitignore"
    if entry.parent.name == FOLDER and not ignore.exists():
        ignore.write_text("*\n")
    temporary = entry.with_name(f"writing-{uuid.uuid4().hex}.tmp")
    _unfinished.add(temporary)
    try:
        with temporary.open("xb") as out:
            _fill(out, *_contents(trace))
        temporary.replace(entry)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        _unfinished.discard(temporary)
    _tidy(entry)


def _tidy(entry: Path) -> None:
    """Remove entries of the same file before it changed, or by an older loader; and what killed writers left."""
    before = time.time() - ABANDONED_SECONDS
    for old in entry.parent.iterdir():
        with contextlib.suppress(OSError):
            same = old.name.startswith(f"{entry.name.partition('-')[0]}-") and old != entry
            if same or (old.match("writing-*.tmp") and old.stat().st_mtime < before):
                old.unlink()


def _contents(trace: Trace) -> tuple[dict[str, Any], list[NDArray[Any]]]:
    """What the first lines of an entry tell, and the arrays that follow."""
    arrays: dict[str, NDArray[Any]] = {}
    words: dict[str, Any] = {}
    for table in _TABLES:
        columns = getattr(trace, table)
        for column in fields(columns):
            value = getattr(columns, column.name)
            (words if isinstance(value, tuple) else arrays)[f"{table}.{column.name}"] = value
    told = {
        "arrays": {name: (array.dtype.str, len(array)) for name, array in arrays.items()},
        "words": words,
        "events": trace.events,
        "partial": trace.partial,
        "devices": trace.devices,
        "distributed": trace.distributed,
        "base_ns": trace.base_ns,
        "host": trace.host,
        "thread_names": [(*key, value) for key, value in trace.thread_names.items()],
        "findings": trace.findings,
    }
    return told, list(arrays.values())


def _fill(out: BinaryIO, told: dict[str, Any], arrays: list[NDArray[Any]]) -> None:
    """Write a checksum, the length of what is told, that, and each array, all at multiples of 16 bytes."""
    said = msgspec.json.encode(told)
    checksum = 0
    out.write(bytes(_ALIGNED))
    parts: list[bytes | memoryview] = [len(said).to_bytes(_ALIGNED, "little"), said]
    for part in parts + [array.view(np.uint8).data for array in arrays]:
        for piece in (part, bytes(-len(part) % _ALIGNED)):
            checksum = zlib.crc32(piece, checksum)
            out.write(piece)
    out.seek(0)
    out.write(checksum.to_bytes(_ALIGNED, "little"))


def _taken(whole: bytearray) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """What an entry tells, and its arrays, which lie in `whole`. Nothing is looked at before the checksum is right."""
    rest = memoryview(whole)[_ALIGNED:]
    if len(rest) < _ALIGNED or zlib.crc32(rest) != int.from_bytes(whole[:_ALIGNED], "little"):
        raise ValueError("the checksum does not fit")
    at = 2 * _ALIGNED
    size = int.from_bytes(rest[:_ALIGNED], "little")
    told = msgspec.json.decode(whole[at : at + size])
    arrays = {}
    for name, (dtype, count) in told["arrays"].items():
        at += size + -size % _ALIGNED
        arrays[name] = np.frombuffer(whole, dtype, count, at) if count else np.empty(0, dtype)
        size = arrays[name].nbytes
    return told, arrays


def _read(entry: Path, name: str) -> Trace:
    with entry.open("rb") as file:
        whole = bytearray(os.fstat(file.fileno()).st_size)
        file.readinto(whole)
    told, arrays = _taken(whole)
    tables: dict[str, Any] = {}
    for table, kind in _TABLES.items():
        tables[table] = kind(
            **{
                column.name: tuple(told["words"][key]) if key in told["words"] else arrays[key]
                for column in fields(kind)
                for key in [f"{table}.{column.name}"]
            }
        )
    _check(**tables)
    return Trace(
        path=name,
        events=told["events"],
        partial=told["partial"],
        devices=tuple(msgspec.convert(device, Device) for device in told["devices"]),
        distributed=msgspec.convert(told["distributed"], Distributed),
        base_ns=told["base_ns"],
        host=told["host"],
        thread_names={(pid, tid): label for pid, tid, label in told["thread_names"]},
        findings=msgspec.convert(told["findings"], tuple[Finding, ...]),
        **tables,
    )


def _check(columns: Columns, collectives: Collectives, **others: Any) -> None:
    """Raise ValueError where columns of a table have different lengths, or numbers of words lead nowhere."""
    for table in (columns, collectives, *others.values()):
        arrays = [getattr(table, each.name) for each in fields(table)]
        if len({len(array) for array in arrays if isinstance(array, np.ndarray)}) > 1:
            raise ValueError("columns of one table have different lengths")
    told = collectives
    for ids, words in (
        ((columns.name_id,), columns.names),
        ((columns.category_id,), columns.categories),
        ((columns.pid_id, columns.tid_id), columns.labels),
        ((told.kind, told.dtype, told.group, told.group_ranks, told.dims, told.types), told.words),
    ):
        if any(len(column) and not -1 <= column.min() <= column.max() < len(words) for column in ids):
            raise ValueError("the numbers of words lead nowhere")


def _prune(folder: Path) -> None:
    """Remove what was not used for longest until the user's folder is small enough."""
    with contextlib.suppress(OSError):
        found = sorted((file.stat().st_mtime, file.stat().st_size, file) for file in folder.glob(f"*{_SUFFIX}"))
        total = sum(size for _, size, _ in found)
        for _, size, file in found[:-1]:
            if total <= USER_FOLDER_BYTES:
                return
            file.unlink(missing_ok=True)
            total -= size

"""Columns of traces that were read before, so that a large trace opens at once the next time.

One file of numpy arrays for each trace, in `.dptune-cache/` beside it, or in the user's cache folder where that cannot
be written or the trace is remote. Its name holds what it was made from: where the trace is, what tells its content from
another (device, inode, size and time of change, or what a remote store says of it), and a digest of the loader's own
source, so that a changed loader never meets old columns. Arrays are read without pickle and with zip's checksums. An
entry is written beside its place and moved there whole, so writers and readers may run at once. Nothing here can fail
a report: an entry that cannot be read or written is as good as none.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
import uuid
import zipfile
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import platformdirs

from dptune.finding import Finding
from dptune.trace import source
from dptune.trace.columns import Collectives, Columns, Counters, Memory
from dptune.trace.events import Blocks, Device, Distributed, Trace

FOLDER = ".dptune-cache"
LEAST_TEXT_BYTES = 2**20  # a smaller trace is read as fast as its entry
NEW_SECONDS = 2.0  # the coarsest times of change that file systems keep
USER_FOLDER_BYTES = 8 * 2**30  # in the user's cache folder: what was not used for longest goes first

_TABLES = {"columns": Columns, "collectives": Collectives, "memory": Memory, "counters": Counters, "blocks": Blocks}
_SUFFIX = ".npz"
# What a damaged or foreign entry may raise while it is read.
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, MemoryError)


class Entry:
    """Where the columns of a trace are kept, as its file is now."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._identity = source.identity(name)

    def load(self) -> Trace | None:
        """The trace as it was read before; None where it was not, or is another by now."""
        for entry in self._places():
            if entry.is_file():
                try:
                    trace = _read(entry, self.name)
                except _UNREADABLE:
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
        if not large or trace.partial or source.identity(self.name) != self._identity or _is_new(self.name):
            return
        for entry in self._places():
            try:
                _write(entry, trace)
            except OSError:
                continue
            if entry.parent.name != FOLDER:
                _prune(entry.parent)
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
    arrays: dict[str, Any] = {}
    words: dict[str, Any] = {}
    for table in _TABLES:
        columns = getattr(trace, table)
        for column in fields(columns):
            value = getattr(columns, column.name)
            (words if isinstance(value, tuple) else arrays)[f"{table}.{column.name}"] = value
    told = {
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
    arrays["told"] = np.frombuffer(msgspec.json.encode(told), dtype=np.uint8)
    temporary = entry.with_name(f"writing-{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as out:
            np.savez(out, **arrays)
        temporary.replace(entry)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    for old in entry.parent.glob(f"{entry.name.partition('-')[0]}-*{_SUFFIX}"):
        if old != entry:  # of the same file before it changed, or by an older loader
            with contextlib.suppress(OSError):
                old.unlink()


def _read(entry: Path, name: str) -> Trace:
    with entry.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        told = msgspec.json.decode(arrays["told"].tobytes())
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

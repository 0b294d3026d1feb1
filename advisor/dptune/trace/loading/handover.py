"""What another process has read, handed over by a file: a pipe takes several times as long for columns of 70 MB."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dptune.runfile.locking import lock

MEMORY = Path("/dev/shm")
LEAST_ROOM_BYTES = 2**30
LEAST_BYTES = 2**20  # of arrays together: fewer go by the pipe as fast
STALE_SECONDS = 60.0  # what is younger may be about to be locked
_PREFIX = "dptune-parcels-"


@dataclass(frozen=True)
class Parcel:
    """A pickled object, whose arrays lie one after another in a file. Only processes of one run hand these over."""

    body: bytes
    file: str
    sizes: tuple[int, ...]

    def open(self) -> Any:
        """The object; its file is read whole and removed, so that a thousand of them hold no thousand files open."""
        path = Path(self.file)
        whole = memoryview(bytearray(sum(self.sizes)))
        with path.open("rb") as file:
            file.readinto(whole)
        with contextlib.suppress(OSError):
            path.unlink()
        buffers, at = [], 0
        for size in self.sizes:
            buffers.append(whole[at : at + size])
            at += size
        return pickle.loads(self.body, buffers=buffers)


@contextmanager
def folder() -> Iterator[str | None]:
    """A temporary folder for parcels, in memory where the system has room there; None where no folder can be made.

    What killed processes left in memory is removed first: a folder in use is locked by the process that made it.
    """
    made, lock = _in_memory()
    if made is None:
        with contextlib.suppress(OSError):
            made = tempfile.mkdtemp(prefix=_PREFIX)
    try:
        yield made
    finally:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _in_memory() -> tuple[str | None, int | None]:
    """A folder in memory and the lock on it."""
    try:
        if not MEMORY.is_dir():
            return None, None
        for left in MEMORY.glob(f"{_PREFIX}*"):
            _remove_stale(left)
        if shutil.disk_usage(MEMORY).free < LEAST_ROOM_BYTES:
            return None, None
        made = tempfile.mkdtemp(prefix=_PREFIX, dir=MEMORY)
    except OSError:  # it may be read-only, or full of files
        return None, None
    return made, _lock(made)


def _remove_stale(left: Path) -> None:
    with contextlib.suppress(OSError):
        old = time.time() - left.stat().st_mtime > STALE_SECONDS
        lock = _lock(left) if old else None
        if lock is not None:
            shutil.rmtree(left, ignore_errors=True)
            os.close(lock)


def _lock(made: str | Path) -> int | None:
    """Lock a folder for as long as the descriptor is open, at most until this process ends; None if that fails."""
    try:
        descriptor = os.open(made, os.O_RDONLY)
    except OSError:
        return None
    if not lock(descriptor):
        os.close(descriptor)
        return None
    return descriptor


def parcel(found: Any, folder: str) -> Any:
    """The object as a Parcel with its file in that folder; the object itself where it is small or there is no room."""
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(found, protocol=5, buffer_callback=buffers.append)
    if sum(buffer.raw().nbytes for buffer in buffers) < LEAST_BYTES:
        return found
    try:
        file = tempfile.NamedTemporaryFile(dir=folder, delete=False)  # noqa: SIM115 - who opens the parcel removes it
    except OSError:
        return found
    try:
        with file:
            for buffer in buffers:
                file.write(buffer.raw())
    except OSError:
        Path(file.name).unlink(missing_ok=True)
        return found
    return Parcel(body, file.name, tuple(buffer.raw().nbytes for buffer in buffers))

"""What another process has read, handed over by a file: a pipe takes several times as long for columns of 70 MB."""

from __future__ import annotations

import contextlib
import mmap
import pickle
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MEMORY = Path("/dev/shm")
LEAST_ROOM_BYTES = 2**30


@dataclass(frozen=True)
class Parcel:
    """A pickled object, whose arrays lie one after another in a file. Only processes of one run hand these over."""

    body: bytes
    file: str
    sizes: tuple[int, ...]

    def open(self) -> Any:
        """The object; its file is removed, and lives on in memory for as long as the arrays do."""
        path = Path(self.file)
        with path.open("rb") as file:
            whole = memoryview(mmap.mmap(file.fileno(), sum(self.sizes), access=mmap.ACCESS_COPY))
        with contextlib.suppress(OSError):  # Windows removes it with its folder
            path.unlink()
        buffers, at = [], 0
        for size in self.sizes:
            buffers.append(whole[at : at + size])
            at += size
        return pickle.loads(self.body, buffers=buffers)


def folder() -> tempfile.TemporaryDirectory[str]:
    """A temporary folder for parcels: in memory, where the system has room for files there."""
    roomy = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= LEAST_ROOM_BYTES
    return tempfile.TemporaryDirectory(prefix="dptune-", dir=MEMORY if roomy else None, ignore_cleanup_errors=True)


def parcel(found: Any, folder: str) -> Any:
    """The object as a Parcel with its file in that folder; the object itself where there is no room for it."""
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(found, protocol=5, buffer_callback=buffers.append)
    if not any(buffer.raw().nbytes for buffer in buffers):
        return found
    file = tempfile.NamedTemporaryFile(dir=folder, delete=False)  # noqa: SIM115 - whoever opens the parcel removes it
    try:
        with file:
            for buffer in buffers:
                file.write(buffer.raw())
    except OSError:
        Path(file.name).unlink(missing_ok=True)
        return found
    return Parcel(body, file.name, tuple(buffer.raw().nbytes for buffer in buffers))

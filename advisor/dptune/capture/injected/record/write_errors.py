"""Why a file could not be written: the disk is full, or a limit of the system or of the user is reached."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_FULL_BYTES = 1 << 20  # a disk with less than that left


def why_not_written(error: OSError, folder: Path) -> str:
    """A clause, where it was for want of room; empty where it was for something else.

    `error` may have no number: what was written by C++ only shows that it is not whole.
    """
    limit = file_size_limit()
    reached = limit is not None and any(size >= limit for size in map(_size, unfinished(folder)))
    if error.errno == errno.EFBIG or (error.errno is None and reached):
        return f"the file-size limit of the process is {_amount(limit or 0)} (ulimit -f, RLIMIT_FSIZE)"
    if error.errno == getattr(errno, "EDQUOT", None) and error.errno is not None:
        return "the disk quota is exceeded"
    free = _free(folder)
    if error.errno == errno.ENOSPC or (error.errno is None and free < _FULL_BYTES):
        return f"the disk is full ({_amount(free)} free in {folder})"
    return ""


def file_size_limit() -> int | None:
    """In bytes; None where files may grow as they like."""
    if resource is None:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return None if soft == resource.RLIM_INFINITY else int(soft)


def unfinished(folder: Path) -> list[Path]:
    """The files that this process has begun to write there."""
    return list(folder.glob(f"*.{os.getpid()}.*part*"))


def remove_unfinished(folder: Path) -> None:
    """Torch's library leaves a file behind that it could not write whole, and a full disk needs the room."""
    for left in unfinished(folder):
        with contextlib.suppress(OSError):
            left.unlink()


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


def _free(folder: Path) -> int:
    with contextlib.suppress(OSError):
        return shutil.disk_usage(folder).free
    return _FULL_BYTES


def _amount(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 100_000 or not size else f"{size / 1e3:.1f} kB"

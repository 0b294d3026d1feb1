"""Opening what a user names: a path, or a URL of anything that fsspec knows.

fsspec is the extra `remote`. It is imported when a URL is read, and never for a path.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import BinaryIO, cast

from dptune.errors import TraceError
from dptune.trace.places.failure import RemoteError
from dptune.trace.places.remote import Reading, Remote
from dptune.trace.places.url import is_url, redacted

__all__ = ["identity", "is_url", "located", "opened", "redacted", "shown", "size"]


def located(given: str | os.PathLike[str]) -> Path:
    """The path that a user means, or for a URL a Remote, which does what reading asks of a Path."""
    name = os.fspath(given)
    return cast(Path, Remote(name)) if is_url(name) else Path(name)


def identity(name: str) -> str | None:
    """A text that changes when the file's content does; None where that is not known.

    Of a local file its device, inode, size and times of change; of a remote one what its store says of it, asked anew.
    """
    try:
        if is_url(name):
            return Remote(name).identity()
        status = Path(name).stat()
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"


def size(name: str) -> int:
    """The bytes of a file; 0 where that is not known."""
    try:
        return Remote(name).size() if is_url(name) else Path(name).stat().st_size
    except (OSError, ValueError):
        return 0


@contextmanager
def opened(name: str) -> Iterator[BinaryIO]:
    """The bytes of a file, to be read from its start. Raises TraceError where it cannot be opened."""
    with _remote(name) if is_url(name) else _local(name) as file:
        yield file


def _remote(name: str) -> BinaryIO:
    try:
        return cast(BinaryIO, Reading(Remote(name)))
    except RemoteError as error:
        raise TraceError(f"cannot read {redacted(name)}: {error}", error.hint) from None


def _local(name: str) -> BinaryIO:
    path = Path(name)
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):  # reading a pipe may never end
            raise TraceError(f"{name} is not a regular file", "copy what it yields into a file, and name that")
        return path.open("rb")
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP) and path.is_symlink():
            what = "does not exist" if error.errno == errno.ENOENT else "links back to it"
            raise TraceError(f"{name} is a link to {path.readlink()}, which {what}", "copy the file itself") from None
        raise TraceError(
            f"cannot read {name}: {error.strerror or error}", "check the path and its permissions"
        ) from None


def shown(path: str | os.PathLike[str]) -> str:
    """A file as messages name it: its name and the folder that contains it."""
    where = located(path)
    return str(PurePath(*where.parts[-2:])) if len(where.parts) > 2 else str(where)

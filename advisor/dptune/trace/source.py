"""Opening what a user names."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from dptune.errors import TraceError


@contextmanager
def opened(name: str) -> Iterator[BinaryIO]:
    """The bytes of a file. Raises TraceError where it cannot be opened."""
    path = Path(name)
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):  # reading a pipe may never end
            raise TraceError(f"{name} is not a regular file", "copy what it yields into a file, and name that")
        file = path.open("rb")
    except OSError as error:
        raise TraceError(
            f"cannot read {name}: {error.strerror or error}", "check the path and its permissions"
        ) from None
    with file:
        yield file

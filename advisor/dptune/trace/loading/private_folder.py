"""Folders that belong to this user alone, and the files in them.

Whoever hands out traces can put anything beside them: links to files elsewhere, folders that others write. A folder is
opened once, as what it is and through no link, and its files are reached from there, so that nothing is read from or
written to another place. Where the platform knows no users (Windows), links are refused and ownership is not checked.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_DIRECTLY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # opening a pipe
_BY_DESCRIPTOR = {os.open, os.stat, os.unlink, os.rename} <= os.supports_dir_fd and os.listdir in os.supports_fd


def is_ours(status: os.stat_result) -> bool:
    """Whether what was looked at belongs to this user."""
    return not hasattr(os, "geteuid") or status.st_uid == os.geteuid()


def is_shared(status: os.stat_result) -> bool:
    """Whether users other than the owner may write to it."""
    return hasattr(os, "geteuid") and bool(status.st_mode & OTHERS_WRITE)


class PrivateFolder:
    """An open folder; `name` is always that of a file in it. All raise OSError."""

    def __init__(self, path: Path, descriptor: int | None) -> None:
        self._path = path
        self._at: dict[str, Any] = {} if descriptor is None else {"dir_fd": descriptor}
        self._listed = path if descriptor is None else descriptor

    def read(self, name: str) -> bytearray:
        """The bytes of a file of this user's that nobody else can write; another raises PermissionError."""
        with self._opened(name, os.O_RDONLY | _NO_WAIT) as descriptor:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or not is_ours(status) or is_shared(status):
                raise PermissionError(errno.EPERM, "not a file of this user alone", name)
            whole = bytearray(status.st_size)
            with open(descriptor, "rb", closefd=False) as file:
                file.readinto(whole)
            return whole

    def new(self, name: str) -> BinaryIO:
        """A new file, open for writing; raises FileExistsError where anything has that name."""
        descriptor = os.open(self._name(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | _DIRECTLY, 0o600, **self._at)
        return open(descriptor, "wb")

    def touch(self, name: str) -> None:
        """Give a file the present time."""
        with self._opened(name, os.O_RDONLY | _NO_WAIT) as descriptor:
            os.utime(descriptor if os.utime in os.supports_fd else self._name(name))

    def replace(self, name: str, new_name: str) -> None:
        """Rename a file, in place of another."""
        both = {"src_dir_fd": self._at["dir_fd"], "dst_dir_fd": self._at["dir_fd"]} if self._at else {}
        os.replace(self._name(name), self._name(new_name), **both)  # noqa: PTH105 - by descriptor

    def remove(self, name: str) -> None:
        """Remove a file; nothing where there is none."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._name(name), **self._at)

    def status(self, name: str) -> os.stat_result:
        """Size and times of a file, of a link those of the link."""
        return os.stat(self._name(name), follow_symlinks=False, **self._at)  # noqa: PTH116 - by descriptor

    def names(self) -> list[str]:
        """What is in the folder."""
        return os.listdir(self._listed)  # noqa: PTH208 - by descriptor

    def _name(self, name: str) -> str:
        return name if self._at else os.fspath(self._path / name)

    @contextlib.contextmanager
    def _opened(self, name: str, flags: int) -> Iterator[int]:
        if not _DIRECTLY and stat.S_ISLNK(self.status(name).st_mode):
            raise PermissionError(errno.ELOOP, "a link", name)
        descriptor = os.open(self._name(name), flags | _DIRECTLY, **self._at)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def opened(path: Path, *, make: bool = False) -> Iterator[PrivateFolder]:
    """The folder at a path. Raises OSError where it is a link, belongs to another user, or others may write to it.

    With `make` it is made where there is none, and one of this user's to which others may write is closed to them.
    """
    if make:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _BY_DESCRIPTOR:
        _check(path, path.lstat())
        yield PrivateFolder(path, None)
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _DIRECTLY)
    try:
        status = os.fstat(descriptor)
        if make and is_ours(status) and is_shared(status):
            os.fchmod(descriptor, stat.S_IMODE(status.st_mode) & ~OTHERS_WRITE)
            status = os.fstat(descriptor)
        _check(path, status)
        yield PrivateFolder(path, descriptor)
    finally:
        os.close(descriptor)


def _check(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISDIR(status.st_mode) or not is_ours(status) or is_shared(status):
        raise PermissionError(errno.EPERM, "not a folder of this user alone", os.fspath(path))

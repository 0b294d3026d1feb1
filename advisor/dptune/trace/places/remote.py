"""A file or a folder behind a URL, through fsspec, with the part of pathlib's interface that reading needs.

Not universal_pathlib: what it shows of a URL loses the host and the login (ftp, sftp, abfss, github), by which a file
could not be opened again, and it asks an http server anew for every file of a folder.
"""

from __future__ import annotations

import contextlib
import fnmatch
import io
import itertools
import stat
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any, TypeVar

from dptune.trace.places.failure import RemoteError, explained
from dptune.trace.places.url import parts, redacted

BLOCK_BYTES = 4 * 2**20  # of one request; where the connection breaks, that one is lost
_MAGIC = set("*?[")
# What identifies a content, as the implementations of fsspec name it; a size alone does not.
_MARKS = (
    *("ETag", "etag", "VersionId", "version_id", "generation", "md5Hash", "content_md5", "Content-MD5", "Digest"),
    *("checksum", "blob_id", "sha", "LastModified", "Last-Modified", "last_modified", "last_commit", "mtime"),
    *("updated", "modified", "created", "modify"),
)
_WITHOUT_RANGES = ("range requests", "than requested")  # fsspec's words for it
T = TypeVar("T")


def _hidden(way: PurePosixPath) -> bool:
    return any(part.startswith(".") for part in way.parts)


class Remote:
    """A URL. `str()` of it is for people and has no secrets; `os.fspath()` of it opens it.

    `info` is what fsspec said of it in a listing. Methods raise RemoteError, an OSError.
    """

    def __init__(self, url: str, info: dict[str, Any] | None = None) -> None:
        self._head, self._path, self._rest = parts(url)
        self._known = info

    def __fspath__(self) -> str:
        return f"{self._head}{self._path}{self._rest}"

    def __str__(self) -> str:
        return redacted(f"{self._head}{self._path.rstrip('/')}{self._rest}")

    def __repr__(self) -> str:
        return f"Remote({str(self)!r})"

    def _key(self) -> tuple[str, str, str]:
        return self._head, self._path.rstrip("/"), self._rest

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remote) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __lt__(self, other: Remote) -> bool:
        return self._key() < other._key()

    @property
    def protocol(self) -> str:
        """The protocol by which it is read first."""
        return self._head.partition(":")[0]

    @property
    def _segments(self) -> list[str]:
        return [part for part in self._path.split("/") if part]

    @property
    def parts(self) -> tuple[str, ...]:
        """The bucket or the host with what stands before it, the folders, the name."""
        first, *others = self._segments or [""]
        return (redacted(f"{self._head}{first}"), *others)

    @property
    def name(self) -> str:
        """The last part, without a query."""
        return self._segments[-1] if self._segments else ""

    @property
    def parent(self) -> Remote:
        """The folder it lies in; of a bucket or a host, itself."""
        above, slash, _ = self._path.rstrip("/").rpartition("/")
        if not slash:
            return self
        rest = self._rest if self._rest.startswith("::") else ""  # a query is the file's own
        return Remote(f"{self._head}{above}/{rest}")

    @property
    def parents(self) -> list[Remote]:
        """The folders it lies in, the innermost first."""
        found, at = [], self
        while (above := at.parent) != at:
            found.append(above)
            at = above
        return found

    def __truediv__(self, name: str) -> Remote:
        return self._inside(name, None)

    def with_name(self, name: str) -> Remote:
        """Another file in the same folder."""
        return self.parent / name

    def relative_to(self, folder: Remote) -> PurePosixPath:
        """The way to it from a folder it lies in."""
        return PurePosixPath(*self._segments[len(folder._segments) :])

    def exists(self) -> bool:
        """Whether anything is there."""
        return self._kind() != ""

    def is_dir(self) -> bool:
        """Whether it is a folder, or a prefix that other files have."""
        return self._kind() == "directory"

    def is_file(self) -> bool:
        """Whether it is a file."""
        return self._kind() == "file"

    def stat(self) -> SimpleNamespace:
        """`st_mode` only: whether it is a file, a folder, or something else."""
        modes = {"file": stat.S_IFREG, "directory": stat.S_IFDIR}
        return SimpleNamespace(st_mode=modes.get(self._info().get("type", ""), 0))

    def iterdir(self) -> Iterator[Remote]:
        """What lies in the folder."""
        found = self._found(lambda files, path: {entry["name"]: entry for entry in files.ls(path, detail=True)})
        return (path for path in found if path.parent == self)  # a page over http may link deeper

    def glob(self, pattern: str) -> Iterator[Remote]:
        """What lies in the folder and has a name like the pattern."""
        return (path for path in self.iterdir() if fnmatch.fnmatchcase(path.name, pattern))

    def rglob(self, pattern: str) -> Iterator[Remote]:
        """The files in the folder and in those below it, with a name like the pattern."""
        found = self._found(lambda files, path: files.find(path, detail=True))
        return (path for path in found if fnmatch.fnmatchcase(path.name, pattern))

    def matches(self) -> list[Remote]:
        """What a URL with `*`, `?` or `[` in its path stands for; without hidden files, as in a shell."""
        if not _MAGIC & set(self._path):
            return []
        above = itertools.takewhile(lambda part: not _MAGIC & set(part), self._path.split("/")[:-1])
        base = Remote(f"{self._head}{'/'.join(above)}{self._rest}")
        files, pattern = self._files()
        try:
            found = base._found(lambda _files, _path: files.glob(pattern, detail=True))
        except RemoteError as error:
            if error.absent:
                return []
            raise
        asked = any(part.startswith(".") for part in self.relative_to(base).parts)
        return [path for path in found if asked or not _hidden(path.relative_to(base))]

    def forget(self) -> None:
        """Have listings made anew, not taken from what fsspec keeps of earlier ones."""
        self._files()[0].invalidate_cache()

    def read_text(self, encoding: str = "utf-8") -> str:
        """The whole of a small file."""
        with self.open(encoding=encoding) as file:
            return file.read()

    def open(self, encoding: str = "utf-8", errors: str = "strict") -> io.TextIOWrapper:
        """The text of a file."""
        return io.TextIOWrapper(io.BufferedReader(Reading(self)), encoding=encoding, errors=errors)

    def identity(self) -> str | None:
        """What its store says of the content, asked anew; None where that does not tell one content from another."""
        files, path = self._files()
        info = self._explaining(lambda: (files.invalidate_cache(path), files.info(path))[1])
        known = {key: info[key] for key in _MARKS if info.get(key)}
        if info.get("type") != "file" or not known:
            return None
        return "; ".join(f"{key}={value}" for key, value in {"size": info.get("size"), **known}.items())

    def size(self) -> int:
        """The bytes of the file; 0 where its store does not say."""
        return int(self._info().get("size") or 0)

    def opened(self, block_bytes: int = BLOCK_BYTES) -> tuple[Any, Any]:
        """fsspec's file, read ahead by `block_bytes`, in one go where that is 0; and its file system.

        Some of these, such as that of a zip, close their files when they go: hold both.
        """
        kind = self._kind()
        if kind == "":
            raise RemoteError("it does not exist", "check the spelling of the address", absent=True)
        if kind == "directory":
            raise RemoteError("it is a folder", "name a file in it")
        if kind != "file":
            raise RemoteError("it is not a regular file", "copy what it yields into a file, and name that")
        files, path = self._files()
        file = self._explaining(lambda: files.open(path, "rb", block_size=block_bytes, cache_type="readahead"))
        return file, files

    def _files(self) -> tuple[Any, str]:
        """The file system, and the path in it. Looked up anew each time: fsspec keeps it, but not across a fork."""
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            reason = f"{self.protocol}:// needs fsspec, which is not installed"
            raise RemoteError(reason, 'pip install "dptune[remote]"') from None
        files, path = self._explaining(lambda: url_to_fs(self.__fspath__()))
        return files, path

    def _explaining(self, action: Callable[[], T]) -> T:
        """What an action of fsspec's yields; any error as a RemoteError."""
        try:
            return action()
        except Exception as error:  # each store has its own
            raise explained(error, self.protocol) from None

    def _info(self) -> dict[str, Any]:
        if self._known is None:
            files, path = self._files()
            info = dict(self._explaining(lambda: files.info(path)))
            if str(info.get("url", "")).endswith("/"):  # all that is known of a folder over http
                info["type"] = "directory"
            self._known = info
        return self._known

    def _kind(self) -> str:
        """`file`, `directory`, another type; "" where nothing is there."""
        try:
            return str(self._info().get("type") or "other")
        except RemoteError as error:
            if error.absent:
                return ""
            raise

    def _inside(self, way: str, info: dict[str, Any] | None) -> Remote:
        folder = self._path.rstrip("/")
        rest = self._rest if self._rest.startswith("::") else ""  # a query is the folder's own
        return Remote(f"{self._head}{folder}{'/' if folder else ''}{way}{rest}", info)

    def _found(self, listing: Callable[[Any, str], dict[str, dict[str, Any]]]) -> list[Remote]:
        """The URLs of what a listing in this folder names."""
        files, path = self._files()
        folder = path.rstrip("/")
        found = []
        for name, info in sorted(self._explaining(lambda: listing(files, path)).items()):
            way = name[len(folder) :].strip("/")
            if folder and not name.startswith(f"{folder}/"):
                found.append(Remote(files.unstrip_protocol(name), info))
            elif way:  # some stores list the folder itself
                found.append(self._inside(way, info))
        return found


class Reading(io.RawIOBase):
    """The bytes of a remote file from its start. Raises RemoteError where reading stops."""

    def __init__(self, source: Remote) -> None:
        self._source = source
        self._file, self._files = source.opened()
        self._at = 0

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer as far as bytes come at once."""
        some = self._some(len(buffer))
        buffer[: len(some)] = some
        return len(some)

    def read(self, size: int | None = -1) -> bytes:
        """As many bytes as were asked for, fewer at the end. What came before an error is returned first."""
        if size is None or size < 0:
            return self.readall()
        got = bytearray()
        while len(got) < size:
            try:
                some = self._some(size - len(got))
            except RemoteError:
                if got:
                    break
                raise
            if not some:
                break
            got += some
        return bytes(got)

    def tell(self) -> int:
        """How many bytes were read."""
        return self._at

    def close(self) -> None:
        """Close the file; of what was only read nothing can be lost."""
        if not self.closed:
            with contextlib.suppress(Exception):
                self._file.close()
        super().close()

    def _some(self, size: int) -> bytes:
        try:
            some: bytes = self._file.read(size)
        except Exception as error:  # each store has its own
            if not isinstance(error, ValueError) or not any(words in str(error) for words in _WITHOUT_RANGES):
                raise explained(error, self._source.protocol) from None
            self._begin_again()
            return self._some(size)
        self._at += len(some)
        return some

    def _begin_again(self) -> None:
        """Read up to here once more, all in one go: this http server does not know ranges."""
        until, self._at = self._at, 0
        with contextlib.suppress(Exception):
            self._file.close()
        self._file, self._files = self._source.opened(block_bytes=0)
        while self._at < until and self._some(min(until - self._at, BLOCK_BYTES)):
            pass

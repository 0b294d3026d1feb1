"""The text of a trace file, whatever it is packed or encoded as, and where it breaks off.

Gzip and encodings are recognised by content: `.json.gz` may be plain text and `.json` may be gzip.
"""

from __future__ import annotations

import importlib
import stat
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dptune.errors import TraceError

GIB = 2**30
LIMIT_BYTES = 4 * GIB  # the largest traces seen are 1.5 GB; a gzip bomb of 4 MB unpacks to more than this
_FEED_BYTES = 64 * 1024
_TRAILER_BYTES = 8
_GZIP = b"\x1f\x8b"

try:
    _zlib: Any = importlib.import_module("isal.isal_zlib")
except ImportError:  # no wheel for this platform
    _zlib = zlib


@dataclass(frozen=True)
class Content:
    """UTF-8 text of a file. `broken` says where unpacking stopped early; "" if it did not."""

    text: bytes
    broken: str = ""


def read(path: Path, limit_bytes: int = LIMIT_BYTES) -> Content:
    """The text of a file. Raises TraceError where it cannot be opened, is empty, or exceeds `limit_bytes`."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(
            status.st_mode
        ):  # a pipe or a device: reading it may never end
            raise TraceError(f"{path} is not a regular file", "copy what it yields into a file, and name that")
        if status.st_size > limit_bytes:
            raise _too_large(path, limit_bytes)
        packed = path.read_bytes()
    except OSError as error:
        raise TraceError(
            f"cannot read {path}: {error.strerror or error}", "check the path and its permissions"
        ) from None
    if not packed:
        raise TraceError(
            f"{path} is empty (0 bytes)", "the process was probably stopped before it wrote the trace: record again"
        )
    if packed.startswith(_GZIP):
        text, broken = _unpack(packed, path, limit_bytes)
        if not text:
            raise TraceError(f"{path} is a gzip file of which nothing could be unpacked", "record or copy it again")
        return Content(_utf8(text), broken)
    return Content(_utf8(packed))


def _unpack(packed: bytes, path: Path, limit_bytes: int) -> tuple[bytes, str]:
    """Unpack all gzip members; what came out before the damage, and what the damage was."""
    out: list[bytes] = []
    size = 0
    view = memoryview(packed)
    at = 0
    while packed[at : at + 2] == _GZIP:
        unpacker = _zlib.decompressobj(wbits=31)
        while not unpacker.eof:
            # The trailer goes in alone: a wrong checksum must not take the last block with it.
            room = len(view) - at
            feed = room - _TRAILER_BYTES if _TRAILER_BYTES < room <= _FEED_BYTES else min(_FEED_BYTES, room)
            if not feed:
                return b"".join(out), f"the gzip stream ends early, after {len(packed):,} packed bytes"
            try:
                piece = unpacker.decompress(view[at : at + feed])
            except (zlib.error, getattr(_zlib, "error", zlib.error)):
                trailer = at + feed >= len(packed)
                what = "the gzip checksum does not fit" if trailer else f"the gzip stream is damaged near byte {at:,}"
                return b"".join(out), what
            size += len(piece)
            if size > limit_bytes:
                raise _too_large(path, limit_bytes)
            out.append(piece)
            at += feed - len(unpacker.unused_data)
    return b"".join(out), ""


def _utf8(text: bytes) -> bytes:
    """The text as UTF-8 without a byte order mark."""
    if text.startswith(b"\xef\xbb\xbf"):
        return text[3:]
    if text.startswith((b"\xff\xfe", b"\xfe\xff")):
        return text.decode("utf-16", errors="replace").encode("utf-8", errors="replace")
    if text[:4:2].strip(b"\0") and text[1:4:2] == b"\0\0":
        return text.decode("utf-16-le", errors="replace").encode("utf-8", errors="replace")
    return text


def _too_large(path: Path, limit_bytes: int) -> TraceError:
    return TraceError(
        f"{path} holds more than {limit_bytes / GIB:g} GiB of text: reading stopped at that limit",
        "record fewer steps, or without stacks and shapes",
    )

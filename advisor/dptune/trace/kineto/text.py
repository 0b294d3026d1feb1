"""The text of a trace file block by block, whatever it is packed or encoded as, and where it breaks off.

Gzip and encodings are recognised by content: `.json.gz` may be plain text and `.json` may be gzip. Never more than a
few blocks are held, so a file may be larger than the memory.
"""

from __future__ import annotations

import codecs
import importlib
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from dptune.errors import TraceError

Tick = Callable[[int], None]

GIB = 2**30
LIMIT_BYTES = 64 * GIB  # of text; gzip unpacks to a thousand times its size at most
BLOCK_BYTES = 2**19  # decoding is fastest at half a MiB: the structs of a block stay in the cache of the processor
_PACKED_BYTES = 64 * 1024
_TRAILER_BYTES = 8
_STOPPED = "the process was probably stopped before it wrote the trace: record again"
_GZIP = b"\x1f\x8b"

try:
    _zlib: Any = importlib.import_module("isal.isal_zlib")
except ImportError:  # no wheel for this platform
    _zlib = zlib
_DAMAGED: tuple[type[Exception], ...] = (zlib.error, getattr(_zlib, "error", zlib.error))


class Text:
    """The UTF-8 text of one file without a byte order mark.

    `broken` says, once all was read, where reading or unpacking stopped early; "" if it did not. `limited` whether
    reading stopped at `limit_bytes` of text. `tick` is called after each block with how many bytes of the file were
    read.
    """

    def __init__(self, source: BinaryIO, name: str, limit_bytes: int = LIMIT_BYTES, tick: Tick | None = None) -> None:
        self.name = name
        self.broken = ""
        self.limited = False
        self.limit_bytes = limit_bytes
        self._blocks = self._utf8(source)
        self._source = source
        self._taken = 0
        self._tick = tick

    def read(self) -> bytes:
        """The next block, of BLOCK_BYTES or so; b"" at the end. Raises TraceError for an empty or unreadable file."""
        try:
            block = next(self._blocks, b"")
            if self._tick is not None:
                self._tick(self._source.tell())
            return block
        except OSError as error:
            hint = getattr(error, "hint", "check the path and its permissions")
            raise TraceError(f"cannot read {self.name}: {error.strerror or error}", hint) from None

    def _next(self, source: BinaryIO, size: int) -> bytes:
        """The next bytes of the file; b"" at its end, and where it cannot be read on, which `broken` then says."""
        if self.broken:
            return b""
        try:
            found = source.read(size)
        except OSError as error:
            if not self._taken:
                raise
            self.broken = f"reading stopped at byte {self._taken:,}: {error.strerror or error}"
            return b""
        self._taken += len(found)
        return found

    def _utf8(self, source: BinaryIO) -> Iterator[bytes]:
        size = 0
        convert: codecs.IncrementalDecoder | None = None
        for number, block in enumerate(self._unpacked(source)):
            if not number:
                encoding, mark = _encoding(block)
                block = block[mark:]
                convert = codecs.getincrementaldecoder(encoding)("replace") if encoding else None
            if convert is not None:
                block = convert.decode(block).encode("utf-8", "replace")
            room = self.limit_bytes - size
            size += len(block)
            if len(block) > room:
                self.limited = True
                yield block[:room]
                return
            if block:
                yield block

    def _unpacked(self, source: BinaryIO) -> Iterator[bytes]:
        first = self._next(source, _PACKED_BYTES)
        if not first:
            raise TraceError(f"{self.name} is empty (0 bytes)", _STOPPED)
        if first.startswith(_GZIP):
            yield from _whole_blocks(self._members(first, source))
            return
        while first:
            block = first + self._next(source, BLOCK_BYTES - len(first))
            yield block
            first = self._next(source, _PACKED_BYTES)

    def _members(self, packed: bytes, source: BinaryIO) -> Iterator[bytes]:
        """Unpack all gzip members. The last bytes of the file go in alone: a wrong checksum takes no text with it."""
        taken = len(packed)
        unpacker = _zlib.decompressobj(wbits=31)
        got = False
        while True:
            more = self._next(source, _PACKED_BYTES)
            taken += len(more)
            held = packed[-_TRAILER_BYTES:] if not more else b""
            feed = packed[: len(packed) - len(held)]
            for piece in (feed, held):
                while piece:
                    if unpacker.eof:  # another member, or padding that gzip ignores too
                        piece = piece.lstrip(b"\0")
                        if not piece:
                            break
                        if not _GZIP.startswith(piece[:2]):
                            return
                        unpacker = _zlib.decompressobj(wbits=31)
                    try:
                        text = unpacker.decompress(piece, BLOCK_BYTES)
                    except _DAMAGED:
                        self.broken = self.broken or (
                            "the gzip checksum does not fit"
                            if not more and piece is held
                            else f"the gzip stream is damaged near byte {max(taken - len(more) - len(piece), 0):,}"
                        )
                        if not got:
                            self._nothing()
                        return
                    piece = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
                    if text:
                        got = True
                        yield text
            if not more:
                if not got and self.broken:
                    raise TraceError(f"nothing of {self.name} could be unpacked: {self.broken}", "try again")
                if not got and unpacker.eof:
                    raise TraceError(f"{self.name} is an empty gzip file (0 bytes when unpacked)", _STOPPED)
                if not unpacker.eof:
                    self.broken = self.broken or f"the gzip stream ends early, after {taken:,} compressed bytes"
                if not got:
                    self._nothing()
                return
            packed = more

    def _nothing(self) -> None:
        raise TraceError(f"{self.name} is a gzip file of which nothing could be unpacked", "record or copy it again")


def _whole_blocks(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Join pieces up to about the size of a block."""
    waiting: list[bytes] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= BLOCK_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)


def _encoding(start: bytes) -> tuple[str, int]:
    """What has to be decoded before it is UTF-8 ("" for UTF-8), and the length of the byte order mark."""
    if start.startswith(b"\xef\xbb\xbf"):
        return "", 3
    if start.startswith(b"\xff\xfe"):
        return "utf-16-le", 2
    if start.startswith(b"\xfe\xff"):
        return "utf-16-be", 2
    if start[:4:2].strip(b"\0") and start[1:4:2] == b"\0\0":
        return "utf-16-le", 0
    return "", 0

"""The events of a file into a builder: block by block where the text is sound, event by event where it is not."""

from __future__ import annotations

import re
from collections import deque

import msgspec
import numpy as np

from dptune.trace.events import Blocks
from dptune.trace.kineto import single_event
from dptune.trace.kineto.builder import Builder
from dptune.trace.kineto.repair import REFUSED
from dptune.trace.kineto.scan import Walk
from dptune.trace.kineto.schema import TYPED, Digits, Event
from dptune.trace.kineto.text import BLOCK_BYTES, GIB, Text

MIB = 2**20
LONGEST_BYTES = 64 * MIB  # of what stands before or after the events
LONGEST_EVENT_BYTES = 8 * MIB  # walking one made of nothing but brackets takes seconds for each of them

_TYPED = msgspec.json.Decoder(list[TYPED])
_TOLERANT = msgspec.json.Decoder(list[Event], float_hook=Digits)
_NEXT = re.compile(rb"\}\s*+,\s*+(?=\{)")
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_TAIL_BYTES = 16 * 1024  # where the last boundary is looked for first
_GAP = b" \t\r\n,"
_BEGINS = re.compile(rb'"(?:schemaVersion|traceEvents)"')
_AGAIN = re.compile(rb'"traceEvents"\s*+:')
_EVENTS = re.compile(rb"[\s,]*+\{")
SECOND = ", where a second trace begins: the file holds two traces"


class Body:
    """What stands between the brackets of `traceEvents`: `first` is the text after the opening one, at byte `offset`.

    After `take`, `footer` is the text after the closing bracket ("" where it is missing), at byte `offset`; `damage`
    says where the events broke off ("" where they did not).
    """

    def __init__(self, text: Text, first: bytes, offset: int, builder: Builder) -> None:
        self.footer = b""
        self.damage = ""
        self.offset = offset  # of the first byte of _pending
        self._text = text
        self._builder = builder
        self._pending = first
        self._ended = False
        self._closed = False
        self._blocks: list[tuple[int, int, int]] = []

    def take(self) -> None:
        """Read the events to their end."""
        need, reached = BLOCK_BYTES, self.offset
        while not self._closed and not self.damage:
            self._fill(need)
            before = self._builder.events
            if not self._at_once():
                self._one_by_one()
            if self._builder.full:
                self.broken(f": reading stopped at the limit of {self._builder.full}")
            elif self._builder.events > before:
                need, reached = BLOCK_BYTES, self.offset
            elif not self.damage and self.offset + len(self._pending) - reached > LONGEST_EVENT_BYTES:
                self.broken(f", where no event ends in {LONGEST_EVENT_BYTES // MIB} MiB")
            else:  # an event that does not close is not walked again for each block that is read
                need = 2 * len(self._pending)
        if self._closed:
            self._fill(LONGEST_BYTES)
            self.footer = self._pending
            if _AGAIN.search(self.footer):
                self.broken(SECOND)
            elif _EVENTS.match(self.footer):
                self.broken(", where the list of events is closed and more of them follow")

    def blocks(self) -> Blocks:
        """Where the events lie."""
        return Blocks(*np.array(self._blocks, dtype=np.int64).reshape(len(self._blocks), 3).T.copy())

    def _fill(self, need: int) -> None:
        """Read on until `need` bytes are pending or the file ends."""
        parts, size = [self._pending], len(self._pending)
        while not self._ended and size < max(need, BLOCK_BYTES):
            block = self._text.read()
            self._ended = not block
            parts.append(block)
            size += len(block)
        self._pending = b"".join(parts)

    def _advance(self, by: int) -> None:
        self.offset += by
        self._pending = self._pending[by:]

    def _at_once(self) -> bool:
        """Take what is pending up to the last place at which one event seems to end and the next to begin.

        Were that place inside an event, the brackets would not match and nothing be taken. False where nothing was.
        """
        if self._pending[:1] != b"{":
            self._advance(len(self._pending) - len(self._pending.lstrip(_GAP)))
        last = self._boundary()
        if last is None:
            return False
        cut = last.end()
        listed = b"".join((b"[", memoryview(self._pending)[: last.start() + 1], b"]"))
        for decoder in (_TYPED, _TOLERANT):
            try:
                events = decoder.decode(listed)
            except REFUSED as error:
                closing = _TRAILING.search(str(error))
                if closing is None or self._closed:
                    continue
                # The closing bracket of the events stands inside, and what follows it is not theirs.
                self._closed, cut = True, listed.rindex(b"]", 0, int(closing[1]) - 1)
                listed = listed[: cut + 1]
                try:
                    events = decoder.decode(listed)
                except REFUSED:
                    continue
            first = self._builder.events
            if self._took(events, decoder is _TYPED):
                self._blocks.append((self.offset, self.offset + len(listed) - 2, first))
                self._advance(cut)
                return True
        self._closed = False
        return False

    def _took(self, events: list[Event], typed: bool) -> bool:
        if typed:
            return self._builder.typed(events)
        for event in events:
            self._builder.add(event)
        return True

    def _boundary(self) -> re.Match[bytes] | None:
        """The last place that looks like the end of an event, a comma and the beginning of another."""
        for start in (max(len(self._pending) - _TAIL_BYTES, 0), 0):
            found = deque(_NEXT.finditer(self._pending, start), maxlen=1)
            if found:
                return found[0]
        return None

    def _one_by_one(self) -> None:
        """Take the whole elements that are pending, each by itself, as far as they go."""
        builder, walk = self._builder, Walk(self._pending)
        first = self._builder.events
        while (piece := walk.element()) is not None:
            if piece[:1] != b"{":
                builder.events += 1
                builder.skipped += 1
                continue
            event = single_event.event(piece)
            if event is not None:
                builder.add(event)
            elif piece.count(b'"ph"') > 1:  # whole events inside an event: brackets were lost
                walk.at -= len(piece)
                walk.broken = True
                break
            else:
                builder.events += 1
                builder.unreadable += 1
        if builder.events > first:
            self._blocks.append((self.offset, self.offset + walk.at, first))
        self._advance(walk.at)
        self._closed = walk.closed
        if self._closed:
            self._advance(1)
        elif walk.broken or self._ended:
            limit = f": reading stopped at the limit of {self._text.limit_bytes / GIB:g} GiB of text"
            self.broken(limit if self._text.limited else self._second())

    def broken(self, why: str) -> None:
        """Note what is damaged at `offset`."""
        self.damage = f"at byte {self.offset:,} of its text{why}"

    def _second(self) -> str:
        """Whether another trace begins in the rest of the file, which is read for it."""
        rest = self._pending
        while not (found := _BEGINS.search(rest)) and not self._ended:
            block = self._text.read()
            self._ended = not block
            rest = rest[-32:] + block
        return SECOND if found else ""

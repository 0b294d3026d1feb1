"""A trace file to a Trace: its header, its events, what stands after them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

import msgspec

from dptune.errors import TraceError
from dptune.trace.events import Trace
from dptune.trace.kineto import recognition
from dptune.trace.kineto.body import LONGEST_BYTES, Body
from dptune.trace.kineto.builder import Builder
from dptune.trace.kineto.footer import footer
from dptune.trace.kineto.header import impossible, is_torch, metadata
from dptune.trace.kineto.limitations import doubts
from dptune.trace.kineto.repair import REFUSED, repair
from dptune.trace.kineto.schema import Header
from dptune.trace.kineto.text import LIMIT_BYTES, Text, Tick
from dptune.trace.places import source

_HEADER = msgspec.json.Decoder(Header)
_EACH = msgspec.json.Decoder(dict[str, msgspec.Raw])
_KEY = re.compile(rb'"traceEvents"\s*+:\s*+\[')
_VALUE = re.compile(rb'"traceEvents"\s*+:\s*+([^\s])')
_STARTS = re.compile(rb'"(?:traceEvents|schemaVersion|deviceProperties|baseTimeNanoseconds)"')
_INK = re.compile(rb"[^ \t\r\n]")


@dataclass(frozen=True)
class _Opening:
    """The text of a file up to its events.

    `header` is a JSON object of what stands before them; `rest` follows their opening bracket, at byte `offset`; None
    where the file holds no list of events. `start` is the beginning of the text.
    """

    start: bytes
    header: bytes
    rest: bytes | None
    offset: int = 0


def decode(
    path: str | os.PathLike[str], limit_bytes: int = LIMIT_BYTES, tick: Tick | None = None, keep_operators: bool = True
) -> Trace:
    """Read one trace file.

    Of text, no more than `limit_bytes` are read; `tick` gets how many of the file's bytes were. `keep_operators`: the
    arguments of operators that figures take are kept. Raises TraceError where it is not a torch.profiler trace or
    nothing of it can be read.
    """
    name = os.fspath(path)
    with source.opened(name) as file:
        return _decode(name, Text(file, source.redacted(name), limit_bytes, tick), Builder(keep_operators))


def _decode(path: str, text: Text, builder: Builder) -> Trace:
    name = text.name
    opening = _opening(name, text)
    if opening.rest is None:
        header = _header(opening.header)
        whole = not text.broken and _is_object(opening.header)
        if kind := _no_list(opening.header, whole):
            its = "has the header of a torch.profiler trace, but its" if is_torch(header) else "is JSON, but its"
            raise TraceError(f"{name} {its} traceEvents is {kind}, not a list", "record or copy it again")
        if not whole and _STARTS.search(opening.start):
            raise TraceError(f"{name} breaks off before its first event", "record or copy it again")
        if not is_torch(header):
            raise recognition.refusal(name, opening.start, whole=whole)
        raise _no_events(name, b'"traceEvents"' in opening.start)
    body = Body(text, opening.rest, opening.offset, builder)
    body.take()
    header = _header(opening.header, _rest(body, listed=opening.start.startswith(b"[")))
    columns = builder.columns()
    if body.damage and not builder.events and not opening.start.startswith(b"["):
        raise _no_events(name, True, body.damage)
    if not recognition.is_torch(columns, is_torch(header)):
        raise recognition.refusal(name, opening.start, columns, whole=not (body.damage or text.broken))
    if not builder.events:
        raise _no_events(name, True, body.damage or text.broken)
    if builder.unreadable + builder.skipped == builder.events:
        raise TraceError(f"none of the {builder.events:,} events of {name} can be read", "record or copy it again")
    partial = _partial(builder.events, body.damage, text.broken)
    base = source.located(path).name
    return Trace(
        path=path,
        events=builder.events,
        columns=columns,
        collectives=builder.collectives(),
        memory=builder.memory(),
        counters=builder.counters(),
        operators=builder.operators(),
        blocks=body.blocks(),
        partial=partial,
        thread_names=builder.thread_names,
        findings=(*doubts(base, columns, builder, partial), *impossible(base, header)),
        **metadata(header),
    )


def _opening(name: str, text: Text) -> _Opening:
    """Read up to the events; raises TraceError where the text is no JSON object or list."""
    read = bytearray()
    begin: int | None = None
    seen = 0
    while len(read) <= LONGEST_BYTES and (block := text.read()):
        read += block
        if begin is None:
            first = _INK.search(read, seen)
            seen = len(read) if first is None else first.start()
            if first is None:
                continue
            begin = seen
        start = bytes(read[begin : begin + recognition.LOOKED_AT_BYTES])
        if start.startswith(b"["):
            return _Opening(start, b"{}", bytes(read[begin + 1 :]), begin + 1)
        if not start.startswith(b"{"):
            raise recognition.refusal(name, start)
        keys = list(_KEY.finditer(read, seen))
        for key in keys:
            header = bytes(read[begin : key.start()]).rstrip(b" \t\r\n,") + b"}"
            if _is_object(header) or key is keys[-1]:
                return _Opening(start, header, bytes(read[key.end() :]), key.end())
        seen = max(len(read) - LONGEST_KEY, begin)
    if begin is None:
        raise recognition.refusal(name, b"")
    return _Opening(bytes(read[begin : begin + recognition.LOOKED_AT_BYTES]), bytes(read[begin:]), None)


LONGEST_HEADER_BYTES = 2**20  # that is mended where no parser takes it; mending is slow
LONGEST_KEY = 256  # the key of the events, the colon and the bracket, with blanks between them


def _is_object(text: bytes) -> bool:
    """Whether the text is a JSON object: what stands before the key of the events then is not inside of something."""
    try:
        _HEADER.decode(text)
    except REFUSED:
        return False
    return True


_KINDS = {b"{": "an object", b'"': "text", b"n": "null", b"t": "true", b"f": "false"}


def _no_list(header: bytes, whole: bool) -> str:
    """What `traceEvents` are in a JSON object in which they are no list; "" where they are one, or absent."""
    found = _VALUE.search(header)
    value = found[1] if found else b"["
    if whole:  # the key that was found may be inside of something
        try:
            value = bytes(_EACH.decode(header).get("traceEvents", b"["))
        except REFUSED:
            return ""
    return "" if value[:1] == b"[" else _KINDS.get(value[:1], "a number")


def _header(*parts: bytes) -> Header:
    """The header: the part before the events, and where that says nothing the part after them."""
    best = Header()
    for part in parts:
        try:
            found = _HEADER.decode(part)
        except REFUSED:
            try:
                found = _HEADER.decode(repair(part[:LONGEST_HEADER_BYTES]))
            except REFUSED:
                continue
        for field in Header.__struct_fields__:
            if getattr(best, field) is None:
                setattr(best, field, getattr(found, field))
    return best


def _rest(body: Body, listed: bool) -> bytes:
    """What stands after the events as a JSON object; nothing does where the file is a list of them."""
    if body.damage:
        return b"{}"
    if listed:
        if body.footer.strip():
            body.broken(", where trailing data follows the list of events")
        return b"{}"
    found, wrong = footer(body.footer)
    if wrong:
        body.broken(wrong)
    return found


def _no_events(name: str, listed: bool, damage: str = "") -> TraceError:
    if damage:
        return TraceError(f"{name} breaks off before its first whole event, {damage}", "record or copy it again")
    if listed:
        return TraceError(
            f"{name} is a torch.profiler trace without any events",
            "the profiler's active steps were never reached: let it run for more steps",
        )
    return TraceError(
        f"{name} has the header of a torch.profiler trace but no traceEvents",
        "the process was probably stopped while it wrote the trace: record again",
    )


def _partial(events: int, damage: str, broken: str) -> str:
    """One phrase on where a file broke off."""
    if not damage and not broken:
        return ""
    where = " and ".join(part for part in (damage, broken) if part)
    return f"after {events:,} whole events, {where}"

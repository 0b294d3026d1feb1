"""Bytes of a file to a Trace: the whole file at once where it is sound, event by event where it is damaged."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from dptune.errors import TraceError
from dptune.trace import content, likeness
from dptune.trace.columns import Builder
from dptune.trace.doubts import doubts
from dptune.trace.events import Trace
from dptune.trace.header import is_torch, metadata
from dptune.trace.repair import repair
from dptune.trace.scan import Scan, outline
from dptune.trace.schema import Document, Event, Header

_DOCUMENT = msgspec.json.Decoder(Document)
_LIST = msgspec.json.Decoder(list[Event])
_EVENT = msgspec.json.Decoder(Event)
_HEADER = msgspec.json.Decoder(Header)
_ANY = msgspec.json.Decoder()
_REFUSED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def decode(path: str | os.PathLike[str], limit_bytes: int = content.LIMIT_BYTES) -> Trace:
    """Read one trace file. Raises TraceError where it is not a torch.profiler trace or nothing of it can be read."""
    path = Path(path)
    packed = content.read(path, limit_bytes)
    text = packed.text
    if likeness.is_not_json(text):
        raise likeness.refusal(path, text)
    builder = Builder()
    damage = ""
    try:
        header = _whole(text, builder)
    except _REFUSED:
        builder = Builder()
        header, damage = _piecewise(path, text, builder)
    columns = builder.columns()
    if not likeness.is_torch(columns, is_torch(header)):
        raise likeness.refusal(path, text, columns)
    if not builder.events and b'"traceEvents"' not in text:
        raise TraceError(
            f"{path} has the header of a torch.profiler trace but no traceEvents",
            "the process was probably stopped while it wrote the trace: record again",
        )
    if not builder.events:
        raise TraceError(
            f"{path} is a torch.profiler trace without any events",
            "the profiler's active steps were never reached: let it run for more steps",
        )
    partial = _partial(builder.events, damage, packed.broken)
    return Trace(
        path=str(path),
        events=builder.events,
        columns=columns,
        partial=partial,
        collectives=builder.collectives,
        thread_names=builder.thread_names,
        findings=tuple(doubts(path.name, columns, builder, partial)),
        **metadata(header),
    )


def _whole(text: bytes, builder: Builder) -> Header:
    """Decode a sound file in one go."""
    if text.lstrip().startswith(b"["):
        header, events = Header(), _LIST.decode(text)
    else:
        header = _DOCUMENT.decode(text)
        if header.events is None:
            return header
        events, header.events = header.events, None
    for event in events:
        builder.add(event)
    return header


def _piecewise(path: Path, text: bytes, builder: Builder) -> tuple[Header, str]:
    """Decode a damaged file as far as it goes; its header, and where it broke off."""
    scan = outline(text)
    if scan is None:
        raise likeness.refusal(path, text)
    for piece in scan.events():
        event = _event(piece)
        if event is None and piece.count(b'"ph"') > 1:  # whole events inside an event: brackets were lost
            return _header(scan), f"at byte {scan.end:,} of its text{_second(text[scan.begin :])}"
        if event is None:
            builder.events += 1
            builder.unreadable += 1
        else:
            builder.add(event)
    damage = "" if scan.whole else f"at byte {scan.end:,} of its text{_second(text[scan.begin :])}"
    return _header(scan), damage


def _second(rest: bytes) -> str:
    twice = b'"schemaVersion"' in rest or b'"traceEvents"' in rest
    return ", where a second trace begins: two ranks wrote to one file" if twice else ""


def _event(piece: bytes) -> Event | None:
    try:
        return _EVENT.decode(piece)
    except _REFUSED:
        pass
    mended = repair(piece)
    try:
        return _EVENT.decode(mended)
    except _REFUSED:
        pass
    try:
        # Arguments of a kind that no trace has: the event without them is still an event.
        fields = _ANY.decode(mended)
        fields.pop("args", None)
        return _EVENT.decode(msgspec.json.encode(fields))
    except _REFUSED:
        return None


def _header(scan: Scan) -> Header:
    """The header of a damaged file: the part before the events, and where that says nothing the part after them."""
    best = Header()
    for part in (scan.header, scan.footer):
        try:
            found = _HEADER.decode(repair(part))
        except _REFUSED:
            continue
        for name in Header.__struct_fields__:
            if getattr(best, name) is None:
                setattr(best, name, getattr(found, name))
    return best


def _partial(events: int, damage: str, broken: str) -> str:
    """One phrase on where a file broke off."""
    if not damage and not broken:
        return ""
    where = " and ".join(part for part in (damage, broken) if part)
    return f"after {events:,} whole events, {where}"

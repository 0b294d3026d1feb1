"""The arguments of events as the file has them, read when they are asked for.

Few are ever looked at, and they are most of a file's bytes: only where each block of events lies is remembered, and the
text is unpacked again up to there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, TypeVar

import msgspec
import numpy as np

from dptune.errors import TraceError
from dptune.trace.events import Trace
from dptune.trace.kineto.repair import REFUSED, decoded
from dptune.trace.kineto.scan import Walk
from dptune.trace.kineto.text import Text
from dptune.trace.places import source

_ANY = msgspec.json.Decoder(float_hook=float)  # which takes 1e400 for infinite
_EVENTS = msgspec.json.Decoder(list[msgspec.Raw])

Kind = TypeVar("Kind", bound=msgspec.Struct)


def arguments(trace: Trace, rows: Sequence[int]) -> list[dict[str, Any]]:
    """The `args` of complete events, one dict a row in the order asked for; {} where an event has none.

    Reads the trace's file again: ask for many rows at once. Raises TraceError where the file cannot be read.
    """
    found: list[dict[str, Any]] = [{}] * len(rows)
    for text, places, at_events in _wanted(trace, rows):
        pieces = list(_pieces(text))
        if max(at_events) >= len(pieces):
            raise _changed(trace, "it changed since it was read")
        for place, at in zip(places, at_events, strict=True):
            found[place] = _args(pieces[at])
    return found


def chosen_arguments(trace: Trace, rows: Sequence[int], kind: type[Kind]) -> Iterator[tuple[list[int], list[Kind]]]:
    """Some `args` of complete events as they are written, block by block: places among `rows`, and a struct for each.

    The fields of `kind` are msgspec.Raw, ABSENT where an event lacks one; they keep the text of the block alive. Other
    arguments are skipped, which takes a tenth of the time of `arguments`. Raises TraceError as it does.
    """
    decoder = _decoder(kind)
    for text, places, at_events in _wanted(trace, rows):
        try:
            events = [event.args or kind() for event in decoder.decode(b"".join((b"[", text, b"]")))]
        except REFUSED:
            events = [_raw(kind, _args(piece)) for piece in _pieces(text)]
        if max(at_events) >= len(events):
            raise _changed(trace, "it changed since it was read")
        yield places, [events[at] for at in at_events]


@cache
def _decoder(kind: type[msgspec.Struct]) -> Any:
    """Of lists of events, of which only these arguments are taken."""
    event = msgspec.defstruct("CalledEvent", [("args", kind | None, None)], gc=False)
    return msgspec.json.Decoder(list[event])  # type: ignore[valid-type]


def _raw(kind: type[Kind], args: dict[str, Any]) -> Kind:
    found = kind()
    for name, key in zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True):
        if key in args:
            setattr(found, name, msgspec.Raw(msgspec.json.encode(args[key])))
    return found


def _wanted(trace: Trace, rows: Sequence[int]) -> Iterator[tuple[bytes, list[int], list[int]]]:
    """The text of each block that holds one of these rows, which of them it holds, and the places of their events."""
    if not len(rows):
        return
    positions = trace.columns.position[np.asarray(rows, dtype=np.int64)].astype(np.int64)
    blocks = np.searchsorted(trace.blocks.position, positions, side="right") - 1
    order = np.argsort(blocks, kind="stable")
    present, first = np.unique(blocks[order], return_index=True)
    for (block, text), places in zip(_texts(trace, present.tolist()), np.split(order, first[1:]), strict=True):
        yield text, places.tolist(), (positions[places] - int(trace.blocks.position[block])).tolist()


def _texts(trace: Trace, blocks: list[int]) -> Iterator[tuple[int, bytes]]:
    """The text of each block."""
    with source.opened(trace.path) as file:
        text = Text(file, source.redacted(trace.path))
        held, at = b"", 0
        for block in blocks:
            begin, end = int(trace.blocks.begin[block]), int(trace.blocks.end[block])
            while at + len(held) < end and (more := text.read()):
                if at + len(held) <= begin:
                    at, held = at + len(held), more
                else:
                    held += more
            if at + len(held) < end:
                raise _changed(trace, text.broken or "it became shorter since it was read")
            yield block, held[begin - at : end - at]
            at, held = at + len(held[: end - at]), held[end - at :]


def _changed(trace: Trace, why: str) -> TraceError:
    return TraceError(f"cannot read {source.redacted(trace.path)} again: {why}", "read the run again")


def _pieces(text: bytes) -> Iterator[bytes]:
    """The text of each event of a block."""
    try:
        yield from map(bytes, _EVENTS.decode(b"".join((b"[", text, b"]"))))
        return
    except REFUSED:
        walk = Walk(text)
    while (piece := walk.element()) is not None:
        yield piece


def _args(piece: bytes) -> dict[str, Any]:
    event = decoded(_ANY, piece)
    args = event.get("args") if isinstance(event, dict) else None
    return args if isinstance(args, dict) else {}

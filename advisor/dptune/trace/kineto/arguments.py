"""The arguments of events as the file has them, read when they are asked for.

Few are ever looked at, and they are most of a file's bytes: only where each block of events lies is remembered, and the
text is unpacked again up to there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

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


def arguments(trace: Trace, rows: Sequence[int]) -> list[dict[str, Any]]:
    """The `args` of complete events, one dict a row in the order asked for; {} where an event has none.

    Reads the trace's file again: ask for many rows at once. Raises TraceError where the file cannot be read.
    """
    positions = trace.columns.position[np.asarray(rows, dtype=np.int64)].astype(np.int64)
    blocks = np.searchsorted(trace.blocks.position, positions, side="right") - 1
    wanted: dict[int, list[int]] = {}
    for block, position in zip(blocks.tolist(), positions.tolist(), strict=True):
        wanted.setdefault(block, []).append(position - int(trace.blocks.position[block]))
    found: dict[int, dict[str, Any]] = {}
    for block, text in _texts(trace, sorted(wanted)):
        first = int(trace.blocks.position[block])
        pieces = list(_pieces(text))
        if max(wanted[block]) >= len(pieces):
            raise _changed(trace, "it changed since it was read")
        found.update({first + at: _args(pieces[at]) for at in wanted[block]})
    return [found[position] for position in positions.tolist()]


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

"""Changes of what DDP does with gradients: hooks that compress them, and gradients that are views of buckets."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from dptune.knobs import Value
from dptune.measured import Missing
from dptune.whatif.cpu.shared_link import Link
from dptune.whatif.gpu.assumed import Assumed, Side
from dptune.whatif.gpu.buckets import NO_REDUCER
from dptune.whatif.gpu.editing import requeued, with_edges, without_part
from dptune.whatif.gpu.graph import COMPUTING, Edge, Kind, Message
from dptune.whatif.gpu.parts import Part, having
from dptune.whatif.gpu.program import Program

_HALVED = ("float", "float32", "fp32")
# The hook is Python, called for each bucket on the thread of the backward pass. Assumed.
_HOOK_NS = Assumed(250e3, 80e3, 0.0)
_CASTS = Assumed(2.0, 1.0, 0.0)  # times what casting to 16 bits and scaling take by the bytes that they move
_CAST_BYTES = 10 / 4  # per byte of gradients in fp32: read 4, write 2 to cast, read and write 2 to divide
_UNSAVED = Assumed(1.0, 0.0, 0.0)  # of the halved transfer: sockets and the adding of 16-bit numbers may limit it
_BYTES_PER_NS = 1_000.0  # of device memory, where no copy of gradients shows it


def halves(value: Value) -> bool:
    """Whether a hook sends half of the bytes."""
    return value in ("fp16", "bf16")


def compressed(program: Program, value: Value, side: Side, link: Link) -> Program:
    """All-reduces of 32-bit floats send half, once each bucket is cast.

    On two ranks of an H200 that send through sockets, bf16 took 6 % longer than fp32, where half of the bytes alone
    save 11 %.
    """
    if value == "none":
        return program
    if not halves(value):
        raise Missing(f"the effect of the hook {value} cannot be predicted from a GPU trace")
    halved = [message.kind == "all_reduce" and message.dtype in _HALVED for message in program.messages]
    if not any(halved):
        raise Missing("no fp32 all-reduce was found on all its ranks")
    factors = [
        _factor(message, link, side) if half else 1.0 for message, half in zip(program.messages, halved, strict=True)
    ]
    longer_ns = _casting_ns(program, halved, side)

    def of(place: int, edge: Edge) -> Edge:
        if edge.kind == Kind.COLLECTIVE:
            factor = factors[edge.message]
            return edge if factor == 1 else edge.lasting(edge.lag_ns * factor)
        return edge.lasting(edge.lag_ns + longer_ns[place]) if place in longer_ns else edge

    return with_edges(program, (Kind.COLLECTIVE, *COMPUTING, Kind.COPY, Kind.HOST), of)


def _factor(message: Message, link: Link, side: Side) -> float:
    half = link.alone_ns(message.message_bytes / 2) / link.alone_ns(message.message_bytes)
    return half + _UNSAVED.at(side) * (1 - half)


def _casting_ns(program: Program, halved: list[bool], side: Side) -> dict[int, float]:
    """By place what kernels that make a bucket ready, and the calls that launch them, take longer."""
    rate = _CASTS.at(side) * _CAST_BYTES / _memory_rate(program)
    found: dict[int, float] = defaultdict(float)
    for reduction in program.reductions:
        for bucket in reduction.buckets:
            if not halved[bucket.message]:
                continue
            for rank, ready in reduction.ready.items():
                found[ready[bucket.last]] += rate * program.messages[bucket.message].message_bytes
                found[reduction.called[rank][bucket.last]] += _HOOK_NS.at(side)
    return found


def _memory_rate(program: Program) -> float:
    """Bytes per ns that copies of gradients into buckets and back read and write."""
    moved = sum(
        2 * sum(reduction.gradient_bytes) * len(reduction.moves) / max(1, len(reduction.gradient_bytes))
        for reduction in program.reductions
    )
    moves = {item for reduction in program.reductions for item in reduction.moves}
    spent_ns = sum(
        edge.lag_ns for item in moves for edge in program.edges[item] if edge.kind in COMPUTING | {Kind.COPY}
    )
    return moved / spent_ns if spent_ns and moved else _BYTES_PER_NS


def as_bucket_views(program: Program, value: Value) -> Program:
    """No gradient is copied out of its bucket."""
    if not value:
        raise Missing("a GPU trace does not show how long copying gradients out of buckets would take")
    if not program.reductions:
        raise Missing(NO_REDUCER)
    copies = having(program.parts, Part.BUCKET_COPY)
    viewed = without_part(requeued(program, copies), copies, Part.BUCKET_COPY)
    if viewed is program:
        return program
    kept = [
        replace(reduction, moves=tuple(item for item in reduction.moves if item not in copies))
        for reduction in program.reductions
    ]
    return replace(viewed, reductions=kept)

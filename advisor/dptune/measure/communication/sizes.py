"""Message sizes for calls that were recorded without shapes.

The light window has no shapes; the detailed window of the same rank has. A step makes the same collectives every
time, so the calls of a light step take their sizes, in order, from those of a detailed step. Threads of gloo may start
two calls in another order in some steps: then the sizes are those of DDP's buckets, else those of the most frequent
order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from dptune.measure.communication.calls import Call
from dptune.measure.communication.dtypes import dtype_of
from dptune.runfile.facts import Facts
from dptune.trace.events import Trace
from dptune.trace.kineto.limitations import FAULTY, UNUSABLE

NO_SIZE = "no input shapes for these collectives (record_shapes=True)"
BAD_SIZE = "message sizes in the trace are invalid or unreadable"


def no_size(traces: Iterable[Trace]) -> str:
    """Why a call of these traces has no size."""
    damaged = any(finding.code in (UNUSABLE, FAULTY) for trace in traces for finding in trace.findings)
    return BAD_SIZE if damaged else NO_SIZE


def with_sizes(light: list[Call], detailed: list[Call], facts: Facts | None) -> list[Call]:
    """The light calls, with type, size and group of the detailed window, else of DDP's buckets, where they fit."""
    if all(call.message_bytes is not None for call in light):
        return light
    pattern, alike = _pattern(detailed)
    buckets, dtype = _buckets(facts)
    sized: list[Call] = []
    for step in _by_step(light):
        fits = bool(pattern) and [call.kind for call in step] == [call.kind for call in pattern]
        of_buckets = step if fits and alike else _reduced(step, buckets, dtype)
        if fits and any(call.message_bytes is None for call in of_buckets):
            sized += [_sized(call, model) for call, model in zip(step, pattern, strict=True)]
        else:
            sized += of_buckets
    return sized


def _sized(call: Call, model: Call) -> Call:
    if call.message_bytes is not None:
        return call
    return replace(
        call,
        dtype=call.dtype or model.dtype,
        message_bytes=model.message_bytes,
        group=call.group or model.group,
        group_size=call.group_size or model.group_size,
        ambiguous=call.ambiguous and model.group is None,
    )


def _pattern(detailed: list[Call]) -> tuple[list[Call], bool]:
    """The calls of one step with sizes, in the most frequent order, and whether all detailed steps have this order.

    Nothing where steps differ in more than the order.
    """
    steps = _by_step(detailed)
    orders = [tuple((call.kind, call.dtype, call.message_bytes) for call in step) for step in steps]
    if len({frozenset(Counter(order).items()) for order in orders}) != 1:
        return [], False
    usual, count = Counter(orders).most_common(1)[0]
    return steps[orders.index(usual)], count == len(orders)


def _reduced(step: list[Call], buckets: Sequence[int], dtype: str | None) -> list[Call]:
    """Sizes and type from DDP's buckets, where a step all-reduces exactly those (or them once per backward)."""
    reduces = [call for call in step if call.kind == "all_reduce"]
    if not buckets or not reduces or len(reduces) % len(buckets):
        return step
    sizes = iter(list(buckets) * (len(reduces) // len(buckets)))
    return [
        replace(call, message_bytes=next(sizes), dtype=call.dtype or dtype)
        if call.kind == "all_reduce" and call.message_bytes is None
        else call
        for call in step
    ]


def _buckets(facts: Facts | None) -> tuple[list[int], str | None]:
    """Bucket sizes in bytes in the order they are reduced, and their type where all gradients have one.

    A comm hook sends something else than the bucket. A search for unused parameters also reduces the flags it found.
    """
    if facts is None or len(facts.ddp) != 1 or facts.ddp[0].comm_hook not in (None, "", "None"):
        return [], None
    (ddp,) = facts.ddp
    if ddp.find_unused_parameters and not ddp.static_graph:
        return [], None
    dtype = dtype_of(ddp.gradient_dtypes[0]) if len(ddp.gradient_dtypes) == 1 else None
    return ddp.rebuilt_bucket_sizes or ddp.bucket_sizes, dtype


def _by_step(calls: list[Call]) -> list[list[Call]]:
    steps: dict[int, list[Call]] = {}
    for call in calls:
        steps.setdefault(call.step, []).append(call)
    return list(steps.values())

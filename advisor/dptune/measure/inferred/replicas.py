"""DistributedDataParallel, from what its reducer leaves in a trace.

Names are those of torch's reducer.cpp: it copies each gradient into its bucket under `mul_out`, which divides it, or
under `copy_` where a communication hook is to divide; copies it back under `copy_bucket_to_grad` unless gradients are
views of buckets; and looks for unused parameters under `search_unused_parameters`. A bucket is reduced from inside the
AccumulateGrad node of the gradient that fills it. Tried on the recordings of tests/measure/test_inferred.py.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from dptune.advice import Confidence
from dptune.measure.communication.buffers import buffer_syncs
from dptune.measure.communication.calls import Call
from dptune.measure.inferred.finding import Inferred
from dptune.measure.inferred.hosts import HostEvents
from dptune.measure.intervals import Ints
from dptune.runfile.communication import DdpFacts

_FORWARD = re.compile(r"DistributedDataParallel\.forward$")
_DIVIDED = re.compile(r"torch::distributed::reducer::mul_out$")
_COPIED = re.compile(r"torch::distributed::reducer::copy_$")
_COPIED_BACK = re.compile(r"torch\.distributed\.ddp\.reducer::copy_bucket_to_grad$")
_SEARCHED = re.compile(r"torch\.distributed\.ddp\.reducer::search_unused_parameters$")
_HOOKS = {"float16": "fp16_compress_hook", "bfloat16": "bf16_compress_hook"}


def replicas(host: HostEvents, reduced: Sequence[tuple[int, Call]], sent: Sequence[tuple[int, Call]]) -> list[Inferred]:
    """The DDP module of the rank, or that there is none; nothing where the trace would not show it.

    `reduced` are the all-reduces of gradients, `sent` the broadcasts: the row of the host's call that issued each, in
    order of time, and the collective. Of several modules the trace shows their buckets as if they were one's.
    """
    forwards, divided, copied = (host.rows(pattern) for pattern in (_FORWARD, _DIVIDED, _COPIED))
    if not len(forwards) and not len(divided) and not len(copied):
        return _none(host, reduced)
    facts = DdpFacts(module="")
    parts: dict[str, Confidence] = {}
    if passes := _passes(host, forwards, reduced):
        facts.rebuilt_bucket_sizes, parts["rebuilt_bucket_sizes"] = _usual(passes)
        facts.gradient_bytes, parts["gradient_bytes"] = sum(facts.rebuilt_bucket_sizes), parts["rebuilt_bucket_sizes"]
        facts.gradient_dtypes = sorted({call.dtype for _, call in reduced if call.dtype})
        parts["gradient_dtypes"] = "high"
    if len(copied) and not len(divided):
        (facts.comm_hook, parts["comm_hook"]) = _hook(facts.gradient_dtypes)
        facts.gradient_dtypes, facts.gradient_bytes = [], None  # of what is sent, not of the gradients
        parts.pop("gradient_dtypes", None), parts.pop("gradient_bytes", None)
    elif len(divided):
        parts["comm_hook"] = "high"
    in_buckets = divided if len(divided) else copied
    synced = len(passes)
    if synced and len(in_buckets):
        facts.parameter_tensors, parts["parameter_tensors"] = host.usual_count(in_buckets), "medium"
    if len(host.rows(_COPIED_BACK)):
        facts.gradient_as_bucket_view, parts["gradient_as_bucket_view"] = False, "high"
    elif len(in_buckets) == 0 and synced:
        facts.gradient_as_bucket_view, parts["gradient_as_bucket_view"] = True, "low"
    searched = len(host.rows(_SEARCHED)) > 0
    if searched or len(in_buckets):
        facts.find_unused_parameters = searched
        parts["find_unused_parameters"] = "high" if searched else "medium"  # a static graph is searched only once
    if buffers := _buffers(host, sent):
        facts.broadcast_buffers, parts["broadcast_buffers"] = True, "high"
        facts.buffer_bytes, parts["buffer_bytes"] = buffers, "medium"
    return [Inferred.of("ddp", [facts], "high", **parts)]


def _none(host: HostEvents, reduced: Sequence[tuple[int, Call]]) -> list[Inferred]:
    """That the run has no DDP, if its forward pass or its reducer would be in the trace.

    A compiled model may leave out the range of its forward pass, not what the reducer does in AccumulateGrad.
    """
    if reduced:
        return []
    if (host.trains or host.forwards) and not host.compiles:
        return [Inferred.of("ddp", [], "high")]
    return [Inferred.of("ddp", [], "medium")] if len(host.gradients) else []


def _passes(host: HostEvents, forwards: Ints, reduced: Sequence[tuple[int, Call]]) -> list[tuple[int, ...]]:
    """The sizes of the buckets of each backward pass that reduced any, in bytes, in the order they were issued.

    A backward pass is what comes after a forward pass of the module. Passes with a size that is not known are left out.
    """
    columns = host.columns
    issued = np.array([row for row, _ in reduced], dtype=np.int64)
    if not len(issued):
        return []
    at = np.searchsorted(columns.ts_ns[forwards], columns.ts_ns[issued], side="right")
    found: dict[int, list[int | None]] = {}
    for number, (_, call) in zip(at.tolist(), reduced, strict=True):
        found.setdefault(number, []).append(call.message_bytes)
    whole = [sizes for number, sizes in found.items() if number or not len(forwards)]  # the first may be cut
    return [tuple(size for size in sizes if size is not None) for sizes in whole if None not in sizes]


def _usual(passes: list[tuple[int, ...]]) -> tuple[list[int], Confidence]:
    """The sizes of most passes, and how sure they are: in the first steps DDP has other buckets than later on."""
    sizes, times = Counter(passes).most_common(1)[0]
    return list(sizes), "high" if times == len(passes) > 1 else "medium" if 2 * times > len(passes) > 1 else "low"


def _hook(dtypes: list[str]) -> tuple[str, Confidence]:
    """What divides gradients instead of the reducer; by the dtype that is sent, which hook of torch's it looks like."""
    known = _HOOKS.get(dtypes[0]) if len(dtypes) == 1 else None
    return (known, "medium") if known else ("a communication hook", "low")


def _buffers(host: HostEvents, sent: Sequence[tuple[int, Call]]) -> int:
    """Bytes that DDP broadcasts before a forward pass; 0 where it sends none, or their size is not known."""
    spans = list(buffer_syncs(host.view))
    begins = [int(host.columns.ts_ns[row]) for row, _ in sent]
    inside = [any(begin <= at < end for begin, end in spans) for at in begins]
    sizes = [call.message_bytes for (_, call), within in zip(sent, inside, strict=True) if within]
    if not sizes or None in sizes:
        return 0
    return round(sum(size for size in sizes if size is not None) / len(spans))

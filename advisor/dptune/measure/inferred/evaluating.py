"""Whether a model trains in evaluation mode: its dropout layers are off, though gradients flow through them.

A trace with sizes has the arguments of `aten::dropout`: p, and whether it drops anything. In evaluation mode it adds no
node to autograd's graph, but has the number of the next node. Gradients flow through its input if the node before that
is of the same step and runs in a backward pass. A part without gradients adds no nodes.

Gradients also flow through a frozen part on the way to a trained one, where evaluation mode is right. So the layer with
weights before the dropout must be trained: autograd adds a gradient after its node and before the next such node.
Layers that share weights, and shards of FSDP, get one gradient for several nodes: their dropout is not reported.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator

import numpy as np

from dptune.errors import TraceError
from dptune.measure.host.operator_arguments import OperatorArguments
from dptune.measure.host.recorded_operators import NODE
from dptune.measure.inferred.hosts import HostEvents
from dptune.measure.intervals import Ints, distinct

_DROPOUT = re.compile(r"aten::(?:alpha_|feature_)?dropout$")
_NODE = re.compile(re.escape(NODE))
_WEIGHTED = re.compile(re.escape(NODE) + r"\w*(?:Addmm|Mm|Linear|Convolution)\w*Backward\d*$")
_MOST = 20_000  # calls of dropout that are read
_PART = 0.5  # of the calls; more are on a path of gradients from trained layers: nodes off it never run


def dropouts_off(host: HostEvents) -> float:
    """Calls of dropout in a step, where all drop nothing though p is above 0; 0 where one drops, or it is not known."""
    calls = host.rows(_DROPOUT)
    calls = calls[~host.inside(calls, host.backward)][:_MOST]
    if not len(calls):
        return 0.0
    nodes = host.rows(_NODE)
    forward = host.forward[~host.inside(host.forward, host.backward)]
    try:
        read = OperatorArguments.reading(host.view.trace, distinct(np.concatenate((calls, nodes, forward))))
    except TraceError:
        return 0.0
    drops = [_drops(values) for values in read.argument("Concrete Inputs", calls)]
    if any(drop is not False for drop in drops):
        return 0.0
    ran = set(read.numbers[read.places(nodes)].tolist())
    reached = sum(_reached(host, read, calls, forward, ran, _trained(host, read)))
    return len(calls) / len(host.view.steps) if reached > _PART * len(calls) else 0.0


def _drops(values: object) -> bool | None:
    """Whether a call of dropout with p above 0 drops elements; None where that is not known, or p is 0."""
    if not isinstance(values, list) or len(values) < 3:
        return None
    try:
        probability = float(values[1])
    except (TypeError, ValueError):
        return None
    return {"True": True, "False": False}.get(values[2]) if probability > 0 else None


def _trained(host: HostEvents, read: OperatorArguments) -> dict[int, bool]:
    """By the number of each layer's node that ran, ascending, whether a gradient is added before the next such node."""
    nodes, columns = host.rows(_WEIGHTED), host.columns
    starts_ns, added_ns = columns.ts_ns[nodes], np.sort(columns.ts_ns[host.gradients])
    after = np.searchsorted(added_ns, starts_ns)
    before_next = np.append(after[1:], len(added_ns)) > after
    return dict(sorted(zip(read.numbers[read.places(nodes)].tolist(), before_next.tolist(), strict=True)))


def _reached(
    host: HostEvents, read: OperatorArguments, calls: Ints, forward: Ints, ran: set[int], trained: dict[int, bool]
) -> Iterator[bool]:
    """By call in steps, whether gradients flow through its input, and the layer before it is trained."""
    layers = list(trained)
    columns = host.columns
    for step in host.view.steps:
        in_step, of_step = (
            rows[(columns.ts_ns[rows] >= step.start_ns) & (columns.ts_ns[rows] < step.end_ns)]
            for rows in (calls, forward)
        )
        numbers = read.numbers[read.places(of_step)]
        numbers = numbers[numbers >= 0]
        if not len(numbers):
            continue
        first = int(numbers.min())
        for number in read.numbers[read.places(in_step)].tolist():
            before = bisect_left(layers, number) - 1
            of_trained = before >= 0 and layers[before] >= first and trained[layers[before]]
            yield of_trained and number > first and number - 1 in ran

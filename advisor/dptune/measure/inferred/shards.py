"""FullyShardedDataParallel and fully_shard, from the ranges of their hooks."""

from __future__ import annotations

import re

from dptune.advice import Confidence
from dptune.measure.inferred.finding import Inferred
from dptune.measure.inferred.hosts import HostEvents
from dptune.measure.intervals import Ints
from dptune.runfile.communication import FsdpFacts

_SECOND = re.compile(r"FSDP::(?P<what>\w+)(?: \((?P<unit>.*)\))?")
_FIRST = re.compile(r"FullyShardedDataParallel\.")
_REDUCES = re.compile(r"FullyShardedDataParallel\._post_backward_hook$")
_GATHERS = re.compile(r"FSDP::all_gather(?: \(.*\))?$")


def shards(host: HostEvents) -> list[Inferred]:
    """What shards the model, or that nothing does; nothing where the trace would not show it."""
    gathers = host.rows(_GATHERS)
    if len(gathers):
        return [_second(host, gathers)]
    if len(host.rows(_FIRST)):
        return [_first(host)]
    if host.compiles:  # hooks run outside of compiled graphs, and only some are ranges
        return [Inferred.of("fsdp", [], "medium")] if host.trains else []
    return [Inferred.of("fsdp", [], "high")] if host.trains or host.forwards else []


def _first(host: HostEvents) -> Inferred:
    """FullyShardedDataParallel names no unit: each reduces its gradients once in a backward pass."""
    units = host.usual_count(reduced) if len(reduced := host.rows(_REDUCES)) else 0
    parts: dict[str, Confidence] = {"version": "high"}
    if units:
        parts["units"] = "medium"
    return Inferred.of("fsdp", [FsdpFacts(version=1, units=units)], "high", **parts)


def _second(host: HostEvents, gathers: Ints) -> Inferred:
    """fully_shard names the unit in each of its ranges: units that backward passes gather again were resharded.

    Gathers per step do not show it: a step of several micro-batches gathers each unit in each forward pass.
    """
    names = [host.columns.name(row) for row in gathers.tolist()]
    units = set(names)
    found = FsdpFacts(version=2, units=len(units))
    parts: dict[str, Confidence] = {"version": "high", "units": "medium"}
    if host.trains:
        again = {name for name, inside in zip(names, host.inside(gathers, host.backward), strict=True) if inside}
        found.reshard_after_forward = 2 * len(again) >= len(units)
        parts["reshard_after_forward"] = "medium"
    return Inferred.of("fsdp", [found], "high", **parts)

"""All facts that can be inferred of one rank."""

from __future__ import annotations

from collections.abc import Sequence

from dptune.measure.communication.calls import Call
from dptune.measure.communication.purposes import GRADIENTS, issuers, purposes
from dptune.measure.inferred.hosts import HostEvents
from dptune.measure.inferred.loaders import loaders
from dptune.measure.inferred.replicas import replicas
from dptune.measure.inferred.shards import shards
from dptune.measure.inferred.updates import updates
from dptune.measure.views import RankView
from dptune.measured.inferred import InferredFacts
from dptune.runfile.facts import DeviceFacts, Facts


def inferred_facts(view: RankView, calls: Sequence[Call], world_size: int | None) -> InferredFacts | None:
    """What the trace of a rank says of facts that a recording would have; `calls` are its collectives in steps.

    None for a trace without steps.
    """
    if view.no_steps:
        return None
    host = HostEvents(view)
    reduced, sent = _issued(view, calls)
    facts = Facts(view.rank, world_size=world_size or 1, backend=view.trace.distributed.backend, ended="")
    confidence = {}
    for found in (*replicas(host, reduced, sent), *shards(host), *updates(host), *loaders(host)):
        setattr(facts, found.name, found.value)
        confidence[found.name] = found.confidence
        confidence |= {f"{found.name}.{part}": sure for part, sure in found.parts.items()}
    if (device := _device(view)) is not None:
        facts.device, confidence["device"] = device, "high"
    return InferredFacts(facts=facts, confidence=confidence)


def _issued(view: RankView, calls: Sequence[Call]) -> tuple[list[tuple[int, Call]], list[tuple[int, Call]]]:
    """All-reduces of gradients and broadcasts, each with the row of the host's call that issued it, in order of time."""
    columns = view.columns
    by_row = {call.row: call for call in calls}
    reduced, sent = [], []
    for device in view.devices:
        issued_by = issuers(view, device)
        purpose = purposes(columns, issued_by)
        for row, issuer, meant in zip(device.operations.rows.tolist(), issued_by.tolist(), purpose.tolist(), strict=True):
            call = by_row.get(row)
            if call is None or issuer < 0:
                continue
            if call.kind == "all_reduce" and meant == GRADIENTS:
                reduced.append((issuer, call))
            elif call.kind == "broadcast":
                sent.append((issuer, call))
    return (
        sorted(reduced, key=lambda pair: int(columns.ts_ns[pair[0]])),
        sorted(sent, key=lambda pair: int(columns.ts_ns[pair[0]])),
    )


def _device(view: RankView) -> DeviceFacts | None:
    """The only device that the trace lists and computes on."""
    used = {device.operations.device for device in view.devices if not device.operations.on_cpu}
    listed = [device for device in view.trace.devices if len(view.trace.devices) == 1 or f"{device.index}" in used]
    if len(used) != 1 or len(listed) != 1:
        return None
    (device,) = listed
    capability = None if device.compute_major is None else f"{device.compute_major}.{device.compute_minor or 0}"
    return DeviceFacts(
        kind="cuda", name=device.name or None, index=device.index, compute_capability=capability,
        memory_bytes=device.memory_bytes,
    )

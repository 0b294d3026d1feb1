"""What the run computes on and talks through."""

from __future__ import annotations

from collections.abc import Sequence

from dptune.measure.device.operations import uses_device, vendor
from dptune.measure.views import RankView
from dptune.runfile.facts import Facts
from dptune.trace.collective_kernels import library_of
from dptune.trace.events import Device
from dptune.trace.kernels import DEVICE_COLLECTIVE_PREFIXES, HOST_COLLECTIVE_PREFIXES
from dptune.trace.vendors import torch_device, unread, vendor_of

_NO_EVENT = "the trace holds no event of the device that the run computes on"


def device_kind(facts: Sequence[Facts], views: Sequence[RankView]) -> tuple[str | None, str]:
    """cpu, cuda, rocm, xpu, ..., and why where it is not known."""
    for rank_facts in facts:
        if rank_facts.device is not None:
            is_cuda = rank_facts.device.kind == "cuda"
            return (vendor_of((), (), [rank_facts.device.name or ""]).kind if is_cuda else rank_facts.device.kind), ""
    for view in views:  # a rank that was profiled without its device does not make it a run on CPUs
        if _on_device(view):
            return vendor(view.trace).kind, ""
    for view in views:
        if uses_device(view.columns):
            foreign = unread(view.columns.categories, view.columns.names)
            return None if foreign is None else foreign.kind, _NO_EVENT
        if view.devices:
            return "cpu", ""
    return None, "the trace holds no operation of any device"


def _on_device(view: RankView) -> bool:
    return any(not device.operations.on_cpu for device in view.devices)


def backend(facts: Sequence[Facts], views: Sequence[RankView]) -> tuple[str | None, str]:
    """nccl, gloo, ..., and why where it is not known. RCCL calls itself nccl."""
    kind, _ = device_kind(facts, views)
    for claim in [rank_facts.backend for rank_facts in facts] + [view.trace.distributed.backend for view in views]:
        if claim:
            return _of_kind(claim, kind), ""
    for view in views:
        for prefix in HOST_COLLECTIVE_PREFIXES + DEVICE_COLLECTIVE_PREFIXES:
            if any(name.startswith(prefix) for name in view.columns.names):
                return prefix.rstrip(":"), ""
        if not _on_device(view):
            continue
        for library in map(library_of, view.columns.names):
            if library is not None and library.backend:
                return library.backend, ""
    return None, "neither the recording nor the trace names a communication backend"


def _of_kind(claim: str, kind: str | None) -> str:
    """Of `cpu:gloo,cuda:nccl` the part for the device the run computes on."""
    parts = dict(part.split(":", 1) for part in claim.lower().split(",") if ":" in part)
    return parts.get(torch_device(kind), claim.lower())


def identity(facts: Facts | None, listed: Device | None) -> tuple[str | None, str | None]:
    """Name of a rank's device, its facts before its trace, and compute capability, its trace before its facts."""
    recorded = facts.device if facts else None
    name = (recorded.name if recorded else None) or (listed.name if listed else None)
    if listed is not None and listed.compute_major is not None:
        return name or None, f"{listed.compute_major}.{listed.compute_minor or 0}"
    return name or None, (recorded.capability if recorded else None) or None

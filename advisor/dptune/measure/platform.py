"""What the run computes on and talks through."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dptune.measure.device.operations import uses_device
from dptune.measure.views import RankView
from dptune.runfile.facts import Facts
from dptune.trace.kernels import HOST_COLLECTIVE_PREFIXES, Work, work_of

_ROCM = re.compile(r"\bAMD\b|Radeon|Instinct|\bgfx\d|\bMI\d{3}", re.IGNORECASE)


def device_kind(facts: Sequence[Facts], views: Sequence[RankView]) -> tuple[str | None, str]:
    """cpu, cuda, rocm or mtia, and why where it is not known."""
    for own in facts:
        if own.device is not None:
            return (
                "rocm" if own.device.kind == "cuda" and _ROCM.search(own.device.name or "") else own.device.kind
            ), ""
    for view in views:
        names = " ".join(device.name for device in view.trace.devices)
        hip = view.columns.rows(named=lambda name: name.startswith("hip"))
        makers = {device.operations.device.partition(":")[0] for device in view.devices} - {"cpu"}
        if makers:
            return ("rocm" if _ROCM.search(names) or len(hip) else makers.pop()), ""
        if uses_device(view.columns):
            return None, "the trace holds no event of the device that the run computes on"
        if view.devices:
            return "cpu", ""
    return None, "the trace holds no operation of any device"


def backend(facts: Sequence[Facts], views: Sequence[RankView]) -> tuple[str | None, str]:
    """nccl, gloo, ..., and why where it is not known. RCCL calls itself nccl."""
    kind, _ = device_kind(facts, views)
    for claim in [own.backend for own in facts] + [view.trace.distributed.backend for view in views]:
        if claim:
            return _of_kind(claim, kind), ""
    for view in views:
        for prefix in HOST_COLLECTIVE_PREFIXES:
            if any(name.startswith(prefix) for name in view.columns.names):
                return prefix.rstrip(":"), ""
        if any("nccl" in name.lower() and work_of("kernel", name) == Work.COMMUNICATION for name in view.columns.names):
            return "nccl", ""
    return None, "neither the recording nor the trace names a communication backend"


def _of_kind(claim: str, kind: str | None) -> str:
    """Of `cpu:gloo,cuda:nccl` the part for the device the run computes on."""
    parts = dict(part.split(":", 1) for part in claim.lower().split(",") if ":" in part)
    return parts.get("cpu" if kind == "cpu" else "cuda", claim.lower())

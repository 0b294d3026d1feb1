"""Facts about a rank's GPU that its trace, or the name of the GPU, contradicts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from dptune.finding import Finding
from dptune.runfile.facts import DeviceFacts, Facts
from dptune.trace.events import Device, Trace

_MEMORY_SHARE = 0.05  # by which sizes of one GPU's memory may differ: drivers reserve some
_MOST_SIGNS = 60  # of a value that a finding names
# Compute capability by the name of the GPU: https://developer.nvidia.com/cuda-gpus
_BY_NAME = tuple(
    (re.compile(rf"(?<![A-Z0-9])(?:{names})(?![A-Z0-9])", re.IGNORECASE), capability)
    for names, capability in (
        ("B300|GB300", "10.3"),
        ("RTX 50[6-9]0", "12.0"),
        ("B200|GB200|B100", "10.0"),
        ("H100|H200|GH200|H800|H20", "9.0"),
        ("L4|L40S?|RTX 40[6-9]0|RTX 6000 Ada", "8.9"),
        ("A10G?|A40|RTX A6000|RTX 30[5-9]0", "8.6"),
        ("A100|A800|PG509|A30", "8.0"),
        ("T4|RTX 20[6-8]0", "7.5"),
        ("V100S?", "7.0"),
    )
)


def without_contradictions(facts: Facts, trace: Trace | None) -> tuple[Facts, list[Finding]]:
    """The facts without those about the GPU that cannot be, and a finding for each; `unread` has them, too."""
    device = facts.device
    if device is None or device.kind == "cpu":
        return facts, []
    wrong = dict(_wrong(device, _listed(device, trace)))
    if not wrong:
        return facts, []
    kept = replace(device)
    for name in wrong:
        setattr(kept, name, None)
    unread = {f"device.{name}": why for name, why in wrong.items()}
    found = [
        Finding(code="facts-left-out", level="partial", text=f"rank {facts.rank}: its fact `{name}` is left out: {why}")
        for name, why in unread.items()
    ]
    return replace(facts, device=kept, unread={**facts.unread, **unread}), found


def capability_of(name: str) -> str:
    """The compute capability of a GPU by its name; "" where it is not known."""
    return next((known for pattern, known in _BY_NAME if pattern.search(name)), "")


def _listed(device: DeviceFacts, trace: Trace | None) -> Device | None:
    """The device that the trace lists under the rank's index, or its only one."""
    every = [] if trace is None else trace.devices
    return next((each for each in every if each.index == device.index), every[0] if len(every) == 1 else None)


def _wrong(device: DeviceFacts, listed: Device | None) -> Iterator[tuple[str, str]]:
    """By name each fact that cannot be, and why."""
    name = device.name or ""
    if listed is not None and listed.name and name and _plain(name) != _plain(listed.name):
        yield "name", f"it is {_shown(name)}, and the trace lists {_shown(listed.name)}"
        name = listed.name
    capability = device.capability
    if listed is not None and listed.compute_major is not None:
        minor = capability.partition(".")[2] if listed.compute_minor is None else listed.compute_minor
        theirs, source = f"{listed.compute_major}.{minor}", "the trace lists"
    else:
        theirs = capability_of(name)
        source = f"{_shown(name)} has"
    if capability and theirs and capability != theirs:
        yield "compute_capability", f"it is {capability}, and {source} {theirs}"
    if listed is not None and listed.memory_bytes and device.memory_bytes:
        apart = abs(device.memory_bytes - listed.memory_bytes)
        if apart > _MEMORY_SHARE * listed.memory_bytes:
            yield "memory_bytes", f"it is {device.memory_bytes:,}, and the trace lists {listed.memory_bytes:,}"


def _plain(name: str) -> str:
    return " ".join(name.split()).casefold()


def _shown(name: str) -> str:
    return repr(name[:_MOST_SIGNS])

"""Peak memory after a change, by components, and whether it fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dptune.capture.effect import in_force
from dptune.knobs import KNOBS, Value
from dptune.measured import Measured, Missing
from dptune.predicted import NOT_TRACKED, Fits, MemoryComponent, MemoryPrediction
from dptune.runfile.facts import Facts
from dptune.whatif import needed_facts
from dptune.whatif.blocks import as_units
from dptune.whatif.memory.changes import besides_root, changed, leaves_memory
from dptune.whatif.memory.model import PARTS, MemoryModel, recorded

# What a prediction is off by without any change of parts: tests/benchmarks/MEMORY.md.
_OF_CHANGE = 0.05
_LEAST = 0.01  # of the peak, where a change leaves the tensors at the peak as they are
FULL_SHARE = 0.9  # of a device's memory: above it fragmentation and longer batches run out of memory
# CUDA context, cuBLAS, cuDNN and NCCL of a process: source NVIDIA, CUDA C++ Best Practices Guide; NCCL's buffers take 8
# MiB for each channel and peer. Where the device's use was recorded, that counts.
_LIBRARIES_BYTES = 1.5e9
_NAMES = {
    "parameters": "parameters",
    "gradients": "gradients",
    "state": "optimizer state",
    "buckets": "DDP buckets",
    "sharding": "gathered FSDP units and their buffers",
    "activations": "activations",
    "temporaries": "temporary tensors of a pass",
    "weights": "temporary tensors as large as parameters",
    "optimizer": "temporary tensors of the optimizer",
    "buffers": "buffers of the model",
    "others": "other tensors of the script",
    "primitives": "primitives of oneDNN (not tensors)",
}


def predict_memory(measured: Measured, facts: Sequence[Facts], changes: Mapping[str, Value]) -> MemoryPrediction:
    """The peak of a rank's tensors with these changes together; the reason for a missing figure is under `missing`."""
    try:
        needed_facts.check(facts)
        before = recorded(measured, facts)
        asked = besides_root(as_units(changes, facts), facts)
        new = {name: value for name, value in asked.items() if name not in KNOBS or not in_force(name, value, facts)}
        if leaves_memory(new):
            raise Missing("these settings do not change memory")
        after = changed(before, new)
    except Missing as lack:
        nothing = MemoryPrediction.only(lack.reason, changes=dict(changes), fits="unknown")
        missing = {**nothing.missing, **dict.fromkeys(("tracked_bytes", "tracked_now_bytes"), NOT_TRACKED)}
        return nothing.model_copy(update={"missing": missing})
    return _prediction(measured, facts, before, after, changes)


def _prediction(
    measured: Measured, facts: Sequence[Facts], before: MemoryModel, after: MemoryModel, changes: Mapping[str, Value]
) -> MemoryPrediction:
    unseen = min(after.fullest.unseen, after.fullest.sharding)
    off = after.doubt + unseen + after.primitives.off_bytes + _OF_CHANGE * abs(after.peak - before.peak)
    if after != before:
        off = max(off, _LEAST * after.peak)
    low, high = max(after.held, after.peak - off), after.peak + off
    capacity, overhead, why = _capacity(measured, facts)
    return MemoryPrediction.of(
        {
            "capacity_bytes": (None if capacity is None else round(capacity), why),
            "tracked_bytes": (None, NOT_TRACKED),
            "tracked_now_bytes": (None, NOT_TRACKED),
        },
        changes=dict(changes),
        now_bytes=round(before.peak),
        peak_bytes=round(after.peak),
        low_bytes=round(low),
        high_bytes=round(high),
        overhead_bytes=round(overhead),
        phase=after.fullest.phase,
        now_phase=before.fullest.phase,
        components=_components(before, after),
        fits=_fits(low, high, overhead, capacity),
    )


def _fits(low: float, high: float, overhead: float, capacity: float | None) -> Fits:
    if capacity is None:
        return "unknown"
    if high + overhead <= FULL_SHARE * capacity:
        return "yes"
    return "no" if low > capacity else "unknown"


def _components(before: MemoryModel, after: MemoryModel) -> list[MemoryComponent]:
    """Each part at the moment of the peak, now and then."""
    found = []
    for name, words in _NAMES.items():
        now, then = (_component(model, name) for model in (before, after))
        if round(now) or round(then):
            found.append(MemoryComponent(name=words, now_bytes=round(now), then_bytes=round(then)))
    return found


def _component(model: MemoryModel, name: str) -> float:
    if name == "primitives":
        return model.primitives.bytes
    size: float = getattr(model.fullest if name in PARTS else model, name)
    return size


def _capacity(measured: Measured, facts: Sequence[Facts]) -> tuple[float | None, float, str]:
    """What a rank may take in bytes, and what it takes overhead tensors; or why that is not known.

    Of a host whose CPUs compute, what it had left is shared among the ranks on it; what they hold now is theirs.
    """
    if measured.known("device_kind") == "cpu":
        rank_facts = facts[0] if facts else None
        available = rank_facts.device.available_bytes if rank_facts and rank_facts.device else None
        if rank_facts is None or available is None:
            return None, 0.0, "free host memory was not recorded"
        here = max(1, sum(each.host == rank_facts.host for each in facts))
        held = recorded(measured, facts).held
        return available / here + held, 0.0, ""
    devices = measured.known("memory") or []
    capacities = [device.known("capacity_bytes") for device in devices]
    known = [capacity for capacity in capacities if capacity]
    if not known:
        return None, 0.0, "neither the recording nor the trace shows the memory size of the device"
    unused = [
        max(0, device.peak_reserved_bytes - device.peak_allocated_bytes)
        for device in devices
        if device.known("peak_reserved_bytes") and device.known("peak_allocated_bytes")
    ]
    return float(min(known)), max(unused, default=0) + _LIBRARIES_BYTES, ""

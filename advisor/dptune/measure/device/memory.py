"""Memory of each device: how full, how much of it is asked for in a step, and whether it grows from step to step.

Torch records every allocation with what is allocated and reserved after it (`[memory]`); source: torch
c10/core/CachingDeviceAllocator.h, c10/core/CPUAllocator.cpp. On a CPU that count begins with the recording.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

import numpy as np

from dptune.measure.device.operations import vendor
from dptune.measure.device.phases import bounds
from dptune.measure.intervals import Intervals, Ints
from dptune.measure.steps.windows import Step
from dptune.measure.views import RankView
from dptune.measured import MemoryFigures
from dptune.runfile.facts import DeviceFacts, Facts
from dptune.trace.columns import NONE, Memory
from dptune.trace.kernels import LAUNCH_CATEGORIES
from dptune.trace.vendors import CPU, DEVICE_TYPES, MEMORY_NAME, types_of

_LEAST_TIMES = 3  # of fewer growths the median is one of them, or the mean of two

_NO_EVENTS = "allocations are recorded in the detailed window only, which is read for one rank"
_NO_RUN = (
    "neither torch's memory statistics nor allocations in the steps were recorded: use `dptune profile`, or "
    "profile_memory=True in torch.profiler"
)
_NO_TOTALS = (
    "torch's memory statistics were not recorded, and the trace has sizes of allocations but no totals: use `dptune "
    "profile`"
)
_ON_CPU = "torch counts CPU memory only while the profiler runs"
_NO_CAPACITY = "neither the recording nor the trace shows how much memory the device has"
_NO_CALLS = "the trace holds no step, or no call of the runtime"
_NO_NAMES = "it is unknown how the runtime of this device names calls that allocate memory"
_SEVERAL = "the rank uses several devices, and the call does not name one"

_Mallocs = tuple[float, int, float, list[int]]  # calls per step, their time, its share, the time by step


@dataclass(frozen=True)
class Allocations:
    """A window of a rank that recorded allocations."""

    window: Literal["light", "detailed"]
    view: RankView


def memory(
    facts: Mapping[int, Facts], views: Sequence[RankView], detailed: RankView | None, accounted: Sequence[RankView]
) -> list[MemoryFigures]:
    """One record per rank and device; `detailed` is the detailed window of one rank.

    `accounted` are the `views` without a last step that is excluded: calls to the driver's allocator are counted in
    these. Peaks and growth are of all steps.
    """
    light = {view.rank: view for view in views}
    counted = {view.rank: view for view in accounted}
    found = []
    for rank in sorted({*facts, *light}):
        light_view = light.get(rank)
        allocations = _with_allocations(
            light_view, detailed if detailed is not None and detailed.rank == rank else None
        )
        device = facts[rank].device if rank in facts else None
        names = _devices(device, light_view, allocations)
        for name in names:
            of_it = (
                device
                if device is not None and (len(names) == 1 or _named(device.kind, device.index) == name)
                else None
            )
            events = _Events.of(allocations, name, len(names) == 1) if allocations is not None else None
            found.append(_figures(rank, name, of_it, light_view, events, _malloc(counted.get(rank))))
    return found


def _with_allocations(light: RankView | None, detailed: RankView | None) -> Allocations | None:
    if detailed is not None and detailed.steps and len(detailed.trace.memory):
        return Allocations("detailed", detailed)
    return Allocations("light", light) if light is not None and light.steps and len(light.trace.memory) else None


def _devices(facts: DeviceFacts | None, light: RankView | None, allocations: Allocations | None) -> list[str]:
    """What the rank computes on, by its trace, else by its facts, else by its allocations."""
    if light is not None and light.devices:
        return sorted({device.operations.device for device in light.devices})
    if facts is not None:
        return [_named(facts.kind, facts.index)]
    if allocations is None:
        return []
    kept = allocations.view.trace.memory
    pairs = sorted(set(zip(kept.device_type.tolist(), kept.device.tolist(), strict=True)))
    return [_named(DEVICE_TYPES[kind], index) for kind, index in pairs if DEVICE_TYPES.get(kind, CPU) != CPU]


def _named(kind: str, index: int | None) -> str:
    return "cpu" if kind == "cpu" else f"{kind}:{index or 0}"


def _figures(
    rank: int,
    name: str,
    facts: DeviceFacts | None,
    light: RankView | None,
    events: _Events | None,
    mallocs: tuple[_Mallocs | None, str],
) -> MemoryFigures:
    on_cpu = name == "cpu"
    whole_run = facts is not None and facts.peak_allocated_bytes is not None
    if facts is not None and whole_run:
        allocated, reserved = facts.peak_allocated_bytes, facts.peak_reserved_bytes
    else:
        allocated, reserved = events.peaks() if events is not None and not on_cpu else (None, None)
    capacity = (facts.memory_bytes if facts is not None else None) or _capacity(light, name)
    per_step = events.per_step() if events is not None else {}
    malloc, no_malloc = mallocs
    no_peak = _ON_CPU if on_cpu else _NO_RUN if events is None else _NO_TOTALS
    figures: dict[str, tuple[Any, str]] = {
        "window": (events.window if events is not None else None, _NO_EVENTS),
        "capacity_bytes": (capacity, _NO_CAPACITY),
        "peak_allocated_bytes": (allocated, no_peak),
        "peak_reserved_bytes": (reserved, no_peak),
        "peak_share": (
            reserved / capacity if reserved and capacity else None,
            no_peak if not reserved else _NO_CAPACITY,
        ),
        "allocations_per_step": (per_step.get("allocations_per_step"), _NO_EVENTS),
        "allocated_bytes_per_step": (per_step.get("allocated_bytes_per_step"), _NO_EVENTS),
        "fragmentation": (
            events.fragmentation() if events is not None else None,
            _ON_CPU if on_cpu else _NO_EVENTS if events is None else _NO_TOTALS,
        ),
        "growth_bytes_per_step": (
            events.growth() if events is not None else None,
            _NO_EVENTS
            if events is None
            else "growth needs two consecutive steps, with the allocated total after each allocation",
        ),
        "least_growth_bytes": (
            events.least_growth() if events is not None else None,
            _NO_EVENTS
            if events is None
            else "growth needs four consecutive steps, with the allocated total after each allocation",
        ),
        "malloc_calls_per_step": (malloc[0] if malloc else None, no_malloc),
        "malloc_ns": (malloc[1] if malloc else None, no_malloc),
        "malloc_share": (malloc[2] if malloc else None, no_malloc),
        "malloc_steps_ns": (malloc[3] if malloc else None, no_malloc),
    }
    return MemoryFigures.of(
        figures,
        rank=rank,
        device=name,
        basis="run" if whole_run else "steps",
    )


@dataclass(frozen=True, eq=False)
class _Events:
    """The allocations of one device in order of time, and the steps they lie in."""

    window: Literal["light", "detailed"]
    steps: list[Step]
    ts_ns: Ints
    size: Ints
    allocated: Ints
    reserved: Ints

    @classmethod
    def of(cls, allocations: Allocations, name: str, alone: bool) -> _Events | None:
        """Those of one device, `alone` where the rank uses no other; None where its allocations were not recorded.

        Of a rank alone on its device the number is not asked: ROCm counts devices in two ways in one file.
        """
        kept: Memory = allocations.view.trace.memory
        kind, _, index = name.partition(":")
        chosen = np.isin(kept.device_type, types_of(kind))
        if kind != CPU and not (alone and len(np.unique(kept.device[chosen])) == 1):
            chosen &= kept.device == int(index)
        rows = np.flatnonzero(chosen)
        rows = rows[np.argsort(kept.ts_ns[rows], kind="stable")]
        columns = (column[rows] for column in (kept.ts_ns, kept.size_bytes, kept.allocated_bytes, kept.reserved_bytes))
        return cls(allocations.window, allocations.view.steps, *columns) if len(rows) else None

    def _inside(self, step: Step) -> slice:
        return slice(*np.searchsorted(self.ts_ns, [step.start_ns, step.end_ns]).tolist())

    def per_step(self) -> dict[str, Any]:
        """How many allocations a step makes and how large they are together, the medians."""
        sizes = [self.size[self._inside(step)] for step in self.steps]
        asked = [size[size > 0] for size in sizes]
        return {
            "allocations_per_step": float(np.median([len(step_sizes) for step_sizes in asked])),
            "allocated_bytes_per_step": round(median(sum(step_sizes.tolist()) for step_sizes in asked)),
        }

    def _all_inside(self) -> slice:
        return slice(*np.searchsorted(self.ts_ns, [self.steps[0].start_ns, self.steps[-1].end_ns]).tolist())

    def peaks(self) -> tuple[int | None, int | None]:
        """The most that was allocated and reserved from the first step to the last."""
        inside = self._all_inside()
        allocated, reserved = self.allocated[inside], self.reserved[inside]
        if not len(allocated) or (allocated == NONE).any():
            return None, None
        before = int(allocated[0]) - int(self.size[inside][0])
        return max(int(allocated.max()), before), int(reserved.max()) if int(reserved.max()) > 0 else None

    def fragmentation(self) -> float | None:
        """What the allocator held and no tensor used, when most was allocated in a step."""
        inside = self._all_inside()
        allocated, reserved = self.allocated[inside], self.reserved[inside]
        if not len(allocated) or (allocated == NONE).any() or reserved[allocated.argmax()] <= 0:
            return None
        return 1 - float(allocated.max()) / float(reserved[allocated.argmax()])

    def growth(self) -> int | None:
        """What is allocated at the end of a step less what was at the end of the one before, the median."""
        more = self._more()
        return round(float(np.median(more))) if len(more) else None

    def least_growth(self) -> int | None:
        """The least of it, over three times or more."""
        more = self._more()
        return int(more.min()) if len(more) >= _LEAST_TIMES else None

    def _more(self) -> Ints:
        if (self.allocated == NONE).any():
            return np.empty(0, np.int64)
        last = np.searchsorted(self.ts_ns, [step.end_ns for step in self.steps]) - 1
        following = np.diff([step.number for step in self.steps]) == 1
        more: Ints = np.diff(self.allocated[last])[following & (last[:-1] >= 0)]
        return more


def _capacity(light: RankView | None, name: str) -> int | None:
    """By the file's list of devices: the one of this number, or the only one on the list for the only one used."""
    if light is None or name == "cpu":
        return None
    listed = light.trace.devices
    alone = len(listed) == len(light.devices) == 1
    return next(
        (device.memory_bytes for device in listed if alone or str(device.index) == name.partition(":")[2]), None
    )


def _malloc(light: RankView | None) -> tuple[_Mallocs | None, str]:
    """Calls to the driver's allocator per step, their time, its share of the steps, the time by step; or why not."""
    if light is None or not light.steps:
        return None, _NO_CALLS
    if len(light.devices) > 1:
        return None, _SEVERAL
    columns = light.columns
    if not len(columns.rows(LAUNCH_CATEGORIES)):
        return None, _NO_CALLS
    if not vendor(light.trace).memory:
        return None, _NO_NAMES
    rows = columns.rows(LAUNCH_CATEGORIES, MEMORY_NAME.search)
    steps = Intervals.union(*bounds(light.steps))
    begin = columns.ts_ns[rows]
    count = sum(int(((begin >= step.start_ns) & (begin < step.end_ns)).sum()) for step in light.steps)
    time = steps & Intervals.union(begin, columns.ends(rows))
    by_step = [(time & Intervals.union(*bounds([step]))).total_ns for step in light.steps]
    return (count / len(light.steps), time.total_ns, time.total_ns / steps.total_ns, by_step), ""

"""Copies between host and device, by direction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dptune.measure.device.blocking import Blocking, blocking
from dptune.measure.device.copy_kinds import Direction, copy_kind
from dptune.measure.device.copy_sites import CopyRows, sites
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.intervals import Intervals, Ints
from dptune.measure.steps.windows import OUTSIDE
from dptune.measure.views import DeviceView, RankView
from dptune.measured import CopyFigures
from dptune.trace.columns import NONE
from dptune.trace.kernels import Work

# From here on start-up, a few microseconds, does not dominate: at 25 GB/s (PCIe 4 x16) and at 2 TB/s.
_LARGE_BYTES, _LARGE_ON_DEVICE_BYTES = 2**20, 2**23

NO_LAUNCH = "it is unknown which step the copies belong to: the trace does not show which calls launched them"
_NO_BYTES = "the trace does not show how many bytes were copied"
_NO_PIN = "the trace does not show whether the host memory was pinned"
_ON_DEVICES: dict[Direction, str] = {"d2d": "copy within the device", "p2p": "copy between devices"}
_NO_TIME = "the copies take no time in the trace"
_NO_LARGE = "no copy is as large as {} MiB, below which latency dominates"


@dataclass(frozen=True, eq=False)
class _Part:
    """The copies of one kind on one device, launched inside steps: their rows, and those of their launches."""

    view: RankView
    device: DeviceView
    rows: Ints
    launch: Ints
    steps: Ints
    blocking: Blocking

    @cached_property
    def time(self) -> Intervals:
        """Their union."""
        return Intervals.union(self.view.columns.ts_ns[self.rows], self.view.columns.ends(self.rows))

    @property
    def exposed(self) -> Intervals:
        """The part of their union with neither compute nor communication beside it."""
        return self.time - (self.device.operations.time[Work.COMPUTE] | self.device.operations.time[Work.COMMUNICATION])

    @property
    def sizes(self) -> Ints:
        """Bytes of each, NONE where the trace does not say."""
        return self.view.columns.total_bytes[self.rows]

    @property
    def durations(self) -> Ints:
        """Nanoseconds of each."""
        return self.view.columns.dur_ns[self.rows]


_Kind = tuple[Direction, bool | None]


def copies(views: Sequence[RankView], detailed: RankView | None) -> list[CopyFigures] | None:
    """One record per direction and kind of host memory, of the copies launched inside steps.

    `detailed` is the detailed window of one rank, which shows where copies are called from. None where there are copies
    on a device, and the launch of none was recorded.
    """
    if any(_unlaunched(device) for view in views for device in view.devices):
        return None
    groups: dict[_Kind, list[_Part]] = {}
    for view in views:
        for key, part in _parts(view):
            groups.setdefault(key, []).append(part)
    sited: dict[_Kind, list[_Part]] = {}
    for key, part in _parts(detailed) if detailed is not None else []:
        sited.setdefault(key, []).append(part)
    steps = sum(view.windows for view in views)
    whole_ns = sum(window.length_ns for view in views for device in view.devices for window in device.windows)
    return [
        _figures(key, parts, steps, whole_ns, _most_detailed(parts, sited.get(key, [])))
        for key, parts in sorted(groups.items(), key=lambda item: str(item[0]))
    ]


def _unlaunched(device: DeviceView) -> bool:
    launch = device.operations.launch[device.operations.work == Work.COPY]
    return len(launch) > 0 and bool((launch == UNLAUNCHED).all())


def _parts(view: RankView) -> list[tuple[_Kind, _Part]]:
    found = []
    for device in view.devices:
        operations, columns = device.operations, view.columns
        chosen = np.flatnonzero((operations.work == Work.COPY) & (device.launched_in != OUTSIDE))
        kinds: dict[_Kind, list[int]] = {}
        for name_id in np.unique(columns.name_id[operations.rows[chosen]]).tolist():
            kinds.setdefault(copy_kind(columns.names[name_id]), []).append(name_id)
        for key, name_ids in kinds.items():
            at = chosen[np.isin(columns.name_id[operations.rows[chosen]], name_ids)]
            rows, launch = operations.rows[at], operations.launch[at]
            held = blocking(columns, rows, launch)
            found.append((key, _Part(view, device, rows, launch, device.launched_in[at], held)))
    return found


def _most_detailed(parts: list[_Part], detailed: list[_Part]) -> CopyRows:
    """The copies whose call sites are shown: of one device in the detailed window, else of the device with most."""
    part = max(detailed or parts, key=lambda part: (int(part.durations.sum()), -part.view.rank))
    return CopyRows(
        part.view, "detailed" if detailed else "light", part.rows, part.launch, part.steps, part.blocking.held
    )


def _figures(key: _Kind, parts: list[_Part], steps: int, whole_ns: int, copy_rows: CopyRows) -> CopyFigures:
    direction, pinned = key
    sizes, durations = (np.concatenate(each) for each in zip(*((p.sizes, p.durations) for p in parts), strict=True))
    total_bytes = sum(sizes.tolist()) if (sizes != NONE).all() else None
    least = _LARGE_ON_DEVICE_BYTES if direction == "d2d" else _LARGE_BYTES
    large = (sizes >= least) & (durations > 0)
    total_ns = int(durations.sum())
    exposed = [part.exposed.total_ns for part in parts]
    held = [part.blocking.time.total_ns for part in parts]
    windows_ns = [max(1, sum(window.length_ns for window in part.device.windows)) for part in parts]
    inside = sum(
        part.time.within(step.start_ns, step.end_ns).total_ns for part in parts for step in part.device.windows
    )
    no_rate = _NO_BYTES if total_bytes is None else _NO_TIME
    figures: dict[str, tuple[Any, str]] = {
        "pinned": (pinned, _ON_DEVICES.get(direction, _NO_PIN)),
        "total_bytes": (total_bytes, _NO_BYTES),
        "gb_per_s": (total_bytes / total_ns if total_bytes is not None and total_ns else None, no_rate),
        "large_gb_per_s": (
            float(np.median(sizes[large] / durations[large])) if large.any() else None,
            no_rate if total_bytes is None or not total_ns else _NO_LARGE.format(least // 2**20),
        ),
    }
    return CopyFigures.of(
        figures,
        direction=direction,
        calls=len(sizes),
        calls_per_step=len(sizes) / steps,
        total_ns=total_ns,
        exposed_ns=sum(exposed),
        most_share=max(ns / whole for ns, whole in zip(exposed, windows_ns, strict=True)),
        most_held_share=max(ns / whole for ns, whole in zip(held, windows_ns, strict=True)),
        hidden_ns=sum(part.time.total_ns for part in parts) - sum(exposed),
        step_share=inside / whole_ns,
        blocking_calls=sum(int(part.blocking.held.sum()) for part in parts),
        held_ns=sum(held),
        sites=sites(copy_rows),
    )

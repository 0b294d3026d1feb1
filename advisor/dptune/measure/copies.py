"""Copies between host and device, by direction."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from dptune.measure.intervals import NOTHING, Intervals
from dptune.measure.steps import OUTSIDE
from dptune.measure.views import DeviceView, RankView
from dptune.measured import CopyFigures
from dptune.trace.kernels import Work
from dptune.trace.schema import NONE

Direction = Literal["h2d", "d2h", "d2d", "p2p", "h2h", "unknown"]

# Names: CUPTI as libkineto writes them ("Memcpy HtoD (Pinned -> Device)"), and roctracer's ("CopyHostToDevice").
_DIRECTIONS: tuple[tuple[re.Pattern[str], Direction], ...] = (
    (re.compile(r"HtoD|HostToDevice", re.IGNORECASE), "h2d"),
    (re.compile(r"DtoH|DeviceToHost", re.IGNORECASE), "d2h"),
    (re.compile(r"PtoP|PeerToPeer", re.IGNORECASE), "p2p"),
    (re.compile(r"DtoD|DeviceToDevice", re.IGNORECASE), "d2d"),
    (re.compile(r"HtoH|HostToHost", re.IGNORECASE), "h2h"),
)
_NO_BYTES = "the trace does not say how many bytes were copied"
_NO_PIN = "the trace does not say whether the host memory was pinned"


def copies(views: Sequence[RankView]) -> list[CopyFigures]:
    """One record per direction and kind of host memory, of the copies launched inside steps."""
    steps = sum(view.windows for view in views)
    groups: dict[tuple[Direction, bool | None], list[tuple[DeviceView, RankView, Any]]] = {}
    for view in views:
        for device in view.devices:
            own = device.operations
            rows = own.rows[(own.work == Work.COPY) & (device.launched_in != OUTSIDE)]
            for name_id in np.unique(view.columns.name_id[rows]):
                key = _kind(view.columns.names[name_id])
                groups.setdefault(key, []).append((device, view, rows[view.columns.name_id[rows] == name_id]))
    return [_figures(*key, parts, steps) for key, parts in sorted(groups.items(), key=lambda item: str(item[0]))]


def _kind(name: str) -> tuple[Direction, bool | None]:
    direction: Direction = next((word for pattern, word in _DIRECTIONS if pattern.search(name)), "unknown")
    pinned = True if "Pinned" in name else False if "Pageable" in name else None
    return direction, pinned


def _figures(
    direction: Direction, pinned: bool | None, parts: list[tuple[DeviceView, RankView, Any]], steps: int
) -> CopyFigures:
    calls = sum(len(rows) for _, _, rows in parts)
    sized = all(bool((view.columns.total_bytes[rows] != NONE).all()) for _, view, rows in parts)
    missing = {} if sized else {"total_bytes": _NO_BYTES}
    if pinned is None:
        missing["pinned"] = _NO_PIN if direction in ("h2d", "d2h") else "no host memory takes part"
    return CopyFigures(
        direction=direction,
        pinned=pinned,
        calls=calls,
        calls_per_step=calls / steps,
        total_bytes=sum(sum(view.columns.total_bytes[rows].tolist()) for _, view, rows in parts) if sized else None,
        total_ns=sum(sum(view.columns.dur_ns[rows].tolist()) for _, view, rows in parts),
        exposed_ns=_exposed(parts),
        missing=missing,
    )


def _exposed(parts: list[tuple[DeviceView, RankView, Any]]) -> int:
    """Union of the copies of each device that no compute and no communication runs beside."""
    by_device: dict[int, tuple[DeviceView, Intervals]] = {}
    for device, view, rows in parts:
        _, before = by_device.get(id(device), (device, NOTHING))
        own = Intervals.union(view.columns.ts_ns[rows], view.columns.ends(rows))
        by_device[id(device)] = device, before | own
    above = (Work.COMPUTE, Work.COMMUNICATION)
    return sum(
        (own - (device.operations.time[above[0]] | device.operations.time[above[1]])).total_ns
        for device, own in by_device.values()
    )

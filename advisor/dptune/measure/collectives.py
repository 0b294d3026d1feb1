"""Collectives of the run: calls of one kind, group, type and size, over the steps of every rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dptune.errors import TraceError
from dptune.measure.calls import Call, calls
from dptune.measure.sizes import NO_SIZE, with_sizes
from dptune.measure.views import RankView, view
from dptune.measured import CollectiveFigures
from dptune.runfile.facts import Facts
from dptune.trace.events import Trace

_NO_GROUP = "the trace does not say which process group"
_NO_DTYPE = "the trace does not say which element type"


def collectives(
    views: Sequence[RankView], rich: Callable[[int], Trace | None], facts: dict[int, Facts]
) -> list[CollectiveFigures]:
    """One record per kind, group, type and size, largest total first.

    `rich` gives the trace of a rank's window with shapes; it is asked only where the lean window has no sizes.
    """
    groups: dict[tuple[object, ...], list[Call]] = {}
    for own in views:
        for call in _of_rank(own, rich, facts.get(own.rank)):
            groups.setdefault((call.kind, call.group, call.group_size, call.dtype, call.message_bytes), []).append(call)
    steps = sum(own.windows for own in views)
    found = [_figures(alike, steps) for alike in groups.values()]
    return sorted(found, key=lambda figures: -figures.total_ns)


def _of_rank(own: RankView, rich: Callable[[int], Trace | None], facts: Facts | None) -> list[Call]:
    lean = [call for device in own.devices for call in calls(own, device)]
    if all(call.message_bytes is not None for call in lean):
        return lean
    try:
        detail = rich(own.rank)
    except TraceError:  # the size stays missing, and its reason says what was looked for
        detail = None
    shaped: list[Call] = []
    if detail is not None:
        detailed = view(own.rank, detail)
        shaped = [call for device in detailed.devices for call in calls(detailed, device)]
    return with_sizes(lean, shaped, facts)


def _figures(alike: list[Call], steps: int) -> CollectiveFigures:
    first = alike[0]
    durations = [call.dur_ns for call in alike]
    holes = {"group": _NO_GROUP, "group_size": _NO_GROUP, "dtype": _NO_DTYPE, "message_bytes": NO_SIZE}
    return CollectiveFigures(
        kind=first.kind,
        group=first.group,
        group_size=first.group_size,
        dtype=first.dtype,
        message_bytes=first.message_bytes,
        calls=len(alike),
        calls_per_step=len(alike) / steps,
        median_ns=round(float(np.median(durations))),
        shortest_ns=min(durations),
        total_ns=sum(durations),
        missing={name: why for name, why in holes.items() if getattr(first, name) is None},
    )

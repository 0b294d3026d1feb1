"""The longest stretch of each kind of time: where to look for what a figure sums up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from dptune.measure.device.alignment import is_unaligned
from dptune.measure.device.loss_kernels import is_of_loss
from dptune.measure.device.matmul import is_layout_change
from dptune.measure.device.phases import DeviceTimeline, Phased, bounds
from dptune.measure.device.precisions import is_fp32
from dptune.measure.intervals import Intervals, Ints
from dptune.measure.steps.windows import Step
from dptune.measure.views import RankView
from dptune.measured import CLASSES, Place
from dptune.trace.columns import Columns
from dptune.trace.kernels import KERNEL_CATEGORIES, LAUNCH_CATEGORIES
from dptune.trace.vendors import MEMORY_NAME

_KERNELS: dict[str, Callable[[str], bool]] = {
    "fp32 matmul": is_fp32,
    "unaligned matmul": is_unaligned,
    "layout change": is_layout_change,
    "loss": is_of_loss,
}


def longest(spent: Sequence[DeviceTimeline], phased: Phased | str) -> dict[str, Place]:
    """The longest stretch over all ranks, by field of the account, `optimizer`, kind of kernel and `malloc`.

    Only those that occur in a step.
    """
    found: dict[str, Place] = {}
    for view, device, timeline in spent:
        times = [(name, timeline.classes[name]) for name in CLASSES]
        times += _of_host(view, phased)
        times += [(name, _of_kernels(view.columns, device.operations.rows, named)) for name, named in _KERNELS.items()]
        for name, time in times:
            longest_place = longer(found.get(name), place(view.rank, time, device.windows))
            if longest_place is not None:
                found[name] = longest_place
    return found


def place(rank: int, time: Intervals, steps: Sequence[Step]) -> Place | None:
    """The longest stretch of a set of time that lies in one step; None where nothing of it lies in any."""
    if not len(time):
        return None
    begin, end = bounds(steps)
    inside = time & Intervals.union(begin, end)
    if not len(inside):
        return None
    at = np.searchsorted(inside.start_ns, begin, side="right") - 1
    cuts = begin[(at >= 0) & (begin < inside.end_ns[at])]  # a step may begin in the midst of a piece
    cuts = np.unique(cuts[~np.isin(cuts, inside.start_ns)])
    starts, ends = inside.start_ns, inside.end_ns
    if len(cuts):
        starts, ends = (np.sort(np.concatenate((each, cuts))) for each in (starts, ends))
    longest_at = int(np.argmax(ends - starts))
    return Place(rank=rank, start_ns=int(starts[longest_at]), end_ns=int(ends[longest_at]))


def longer(first: Place | None, other: Place | None) -> Place | None:
    """The longer of two, the first of equal ones; None where neither is known."""
    return max((each for each in (first, other) if each is not None), key=lambda each: each.length_ns, default=None)


def _of_host(view: RankView, phased: Phased | str) -> Iterator[tuple[str, Intervals]]:
    if not isinstance(phased, str):
        yield "optimizer", phased.hosts[view.rank].optimizing
    yield "malloc", _of_rows(view.columns, view.columns.rows(LAUNCH_CATEGORIES, MEMORY_NAME.search))


def _of_kernels(columns: Columns, rows: Ints, named: Callable[[str], bool]) -> Intervals:
    return _of_rows(columns, rows[columns.of_category(KERNEL_CATEGORIES, rows) & columns.named(named, rows)])


def _of_rows(columns: Columns, rows: Ints) -> Intervals:
    return Intervals.union(columns.ts_ns[rows], columns.ends(rows))

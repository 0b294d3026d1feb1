"""Reductions of fully_shard in a program: the gradients of a unit, once its backward pass is over.

torch names the ranges: `FSDP::post_backward_reduce (layers.0)` encloses the calls that copy the gradients of a unit in
on the compute stream, and reduce-scatter them on another, where what follows the collective runs, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dptune.measure.host.enclosing import NOWHERE, Ranges
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.inferred.hosts import HostEvents
from dptune.measure.steps.windows import OUTSIDE
from dptune.measure.views import DeviceView, RankView
from dptune.trace.kernels import RANGE_CATEGORIES, Work
from dptune.whatif.gpu.gathers import by_range, spans_of, unit_of
from dptune.whatif.gpu.reductions import Places

REDUCES = re.compile(r"FSDP::post_backward_reduce(?: \((?P<unit>.*)\))?$")
_OF_UNITS = re.compile(r"FSDP::")


@dataclass(frozen=True)
class UnitReduction:
    """One unit whose gradients one rank reduces in one backward pass.

    `operations` are the places of begins and ends, in the order of launching; before the one with the number
    `collective` gradients are copied in. `calls` launch them. By gradient of the unit, in the order in which they
    become ready: `ready` is the place of the end of the kernel that makes it so, `called` that of its call.
    """

    rank: int
    step: int
    unit: str
    operations: tuple[tuple[int, int], ...]
    collective: int
    calls: tuple[int, ...]
    ready: tuple[int, ...] = ()
    called: tuple[int, ...] = ()

    @property
    def call(self) -> int:
        """The place of the first call."""
        return self.calls[0]

    @property
    def end(self) -> int:
        """The place of the end of the collective."""
        return self.operations[self.collective][1]

    def moved(self, places: Sequence[int]) -> UnitReduction:
        """The same where each item has another place."""
        operations = tuple((places[begin], places[end]) for begin, end in self.operations)
        calls, ready, called = (tuple(places[item] for item in each) for each in (self.calls, self.ready, self.called))
        return UnitReduction(self.rank, self.step, self.unit, operations, self.collective, calls, ready, called)


def unit_reductions(view: RankView, device: DeviceView, places: Places) -> Iterator[UnitReduction]:
    """Those of one rank in order of time."""
    columns, operations = view.columns, device.operations
    ranges = columns.rows(RANGE_CATEGORIES, REDUCES.match)
    if not len(ranges):
        return
    ranges = ranges[np.argsort(columns.ts_ns[ranges], kind="stable")]
    known = operations.launch != UNLAUNCHED
    rows, launches, steps = operations.rows[known], operations.launch[known], device.launched_in[known]
    communicating = operations.work[known] == Work.COMMUNICATION
    order = np.argsort(columns.ts_ns[launches], kind="stable")
    rows, launches, steps, communicating = (each[order] for each in (rows, launches, steps, communicating))
    inside = by_range(view, ranges, launches)
    of_units = Ranges.of_rows(columns, columns.rows(RANGE_CATEGORIES, _OF_UNITS.match))
    computing = ~communicating & (columns.dur_ns[rows] > 0)
    computing &= of_units.at(columns.thread[launches], columns.ts_ns[launches]) == NOWHERE
    kernels, callers = rows[computing], launches[computing]
    gradients = HostEvents(view).gradients
    at = np.searchsorted(columns.ts_ns[callers], columns.ends(gradients), side="left") - 1
    borders = np.searchsorted(columns.ts_ns[gradients], columns.ts_ns[ranges], side="left").tolist()
    for number, row in enumerate(ranges.tolist()):
        of_range = inside.get(row, [])
        collectives = [place for place, operation in enumerate(of_range) if communicating[operation]]
        if not collectives or steps[of_range[0]] == OUTSIDE:
            continue
        since = at[borders[number - 1] if number else 0 : borders[number]]
        since = since[since >= 0]
        yield UnitReduction(
            rank=view.rank,
            step=view.steps[int(steps[of_range[0]])].number,
            unit=unit_of(REDUCES, columns.name(row)),
            operations=spans_of(places, view.rank, rows[of_range]),
            collective=collectives[0],
            calls=tuple(places[view.rank, "call", row] for row in launches[of_range].tolist()),
            ready=tuple(places[view.rank, "end", row] for row in kernels[since].tolist()),
            called=tuple(places[view.rank, "call", row] for row in callers[since].tolist()),
        )

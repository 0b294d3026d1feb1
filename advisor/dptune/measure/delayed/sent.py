"""The collectives of a device, and the host call that issued each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dptune.measure.communication.calls import Call
from dptune.measure.communication.purposes import issuers, purposes
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.intervals import Intervals, Ints
from dptune.measure.steps.windows import OUTSIDE
from dptune.measure.views import DeviceView, RankView

REDUCING = ("all_reduce", "reduce_scatter", "reduce")


@dataclass(frozen=True, eq=False)
class Sent:
    """Collectives whose issuing call is known, in the order they were issued.

    `rows` are their events, `issued_by` the rows of the calls, `purpose` indices of PURPOSES, `step` indices of steps.
    """

    rows: Ints
    issued_by: Ints
    purpose: Ints
    step: Ints
    kinds: list[str]


@dataclass(frozen=True)
class Delayed:
    """Collectives of a step that start late, as places in `Sent`, and the compute that could overlap them.

    `most_ns`: what overlapping them gains at most, where something else limits it too; None where that is not known.
    """

    places: Ints
    could_hide: Intervals
    most_ns: int | None = None

    def bounded(self, time_ns: int) -> int:
        """As much of a time as overlapping the collectives can gain."""
        gain_ns = min(time_ns, self.could_hide.total_ns)
        return gain_ns if self.most_ns is None else min(gain_ns, self.most_ns)


def sent(view: RankView, device: DeviceView, calls: Sequence[Call]) -> Sent:
    """The collectives of `calls` that a step of the device issued."""
    columns, operations = view.columns, device.operations
    number_of = {row: number for number, row in enumerate(operations.rows.tolist())}
    number = np.array([number_of[call.row] for call in calls], dtype=np.int64)
    issued_by = issuers(view, device)[number]
    known = (issued_by != UNLAUNCHED) & (device.launched_in[number] != OUTSIDE)
    at = np.flatnonzero(known)
    at = at[np.argsort(columns.ts_ns[issued_by[at]], kind="stable")]
    return Sent(
        operations.rows[number[at]],
        issued_by[at],
        purposes(columns, issued_by[at]),
        device.launched_in[number[at]],
        [calls[place].kind for place in at.tolist()],
    )

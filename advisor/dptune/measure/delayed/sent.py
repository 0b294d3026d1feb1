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
class Gains:
    """How much earlier a pass ends where compute overlaps its collectives: likely, and at most (without collectives).

    `idle_ns`: how long the device runs neither between the first and the last of them.
    """

    likely_ns: int
    most_ns: int
    idle_ns: int


@dataclass(frozen=True)
class Delayed:
    """Collectives of a step that start late, as places in `Sent`, and the compute that could overlap them."""

    places: Ints
    could_hide: Intervals
    gains: Gains | None = None

    def hidden_ns(self, exposed_ns: int) -> int:
        """How much of their exposed time overlapping them likely hides."""
        hidden_ns = min(exposed_ns, self.could_hide.total_ns)
        return hidden_ns if self.gains is None else min(hidden_ns, self.gains.likely_ns)

    def most_ns(self, exposed_ns: int) -> int:
        """How much earlier the step can end at most: an operation that waits for them also starts some time later."""
        hidden_ns = min(exposed_ns, self.could_hide.total_ns)
        return hidden_ns if self.gains is None else min(hidden_ns + self.gains.idle_ns, self.gains.most_ns)


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

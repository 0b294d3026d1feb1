"""When collectives are in flight on a device: of several at once, the time counts for the one that started first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dptune.measure.device.phases import DeviceTimeline, bounds
from dptune.measure.intervals import Intervals, first_begun
from dptune.trace.kernels import Work


class InFlight:
    """The collectives of a device, by the places of their operations."""

    def __init__(self, spent_by: DeviceTimeline) -> None:
        view, device, self._timeline = spent_by
        columns, operations = view.columns, device.operations
        communicating = operations.work == Work.COMMUNICATION
        self._number_of = {place: number for number, place in enumerate(np.flatnonzero(communicating).tolist())}
        events = operations.rows[communicating]
        self._since, self._until = first_begun(columns.ts_ns[events], columns.ends(events))
        self._bounds = bounds(device.windows)

    def lengths_ns(self, places: Sequence[int], *classes: str) -> list[int]:
        """How long these take in the steps; then the parts of that in each of these classes of the account."""
        numbers = [self._number_of[place] for place in places]
        pieces = Intervals.union(self._since[numbers], self._until[numbers])
        parts = (pieces, *(pieces & self._timeline.classes[name] for name in classes))
        return [int(part.lengths(*self._bounds).sum()) for part in parts]

"""The parts of a rank's record: numpy arrays and small objects that can be pickled, tens of kilobytes for a rank."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from dptune.measure.device.timeline import Split, Timeline, exposed_parts
from dptune.measure.intervals import Intervals, Ints, Mask
from dptune.measured import Loss

if TYPE_CHECKING:
    from dptune.measure.communication.calls import Call

Value = TypeVar("Value")


@dataclass(frozen=True, eq=False)
class RanByName:
    """What a rank ran on its devices, by name and by class.

    `streams`: by stream the operations of each name; `labels` what the trace calls each stream. `works` are the classes
    of operations. `usual_ns` is the median duration of each compute kernel that takes time. `uncommunicated`: why its
    communication was not recorded, if there are other ranks.
    """

    streams: Mapping[int, Counter[str]]
    labels: Mapping[int, str]
    works: frozenset[int]
    usual_ns: Mapping[str, float]
    uncommunicated: Loss | None

    def __setstate__(self, state: dict[str, Any]) -> None:
        """From another process; names repeat on every rank, and the records of all ranks share them."""
        streams = {stream: Counter(_shared(names)) for stream, names in state["streams"].items()}
        self.__dict__.update(state, streams=streams, usual_ns=_shared(state["usual_ns"]))


@dataclass(frozen=True, eq=False)
class DeviceRecord:
    """One device, of whose operations only collectives and the first of an optimizer in each step are kept.

    `operations` counts all of them. `calls` are the collectives, `places` their places among the kept operations;
    `updating` are the kept operations of an optimizer. `exposed` is the time in which nothing overlaps communication.
    `classes` are the other classes of the account, and with `communication` coarse: right up to each start and end of a
    step's window and each start of a collective, which is where accounts and lateness ask. `queued_ns`: by the start of
    the first window kept, when the work launched before it ends.
    """

    operations: int
    calls: tuple[Call, ...]
    places: Ints
    updating: Mask
    exposed: Intervals
    classes: Mapping[str, Intervals]
    communication: Intervals
    queued_ns: Mapping[int, int]

    def calls_in(self, launched_in: Ints) -> list[Call]:
        """The collectives, each with the step that launched it; `launched_in` is by kept operation."""
        steps = launched_in[self.places].tolist()
        return [
            call if call.step == step else replace(call, step=step)
            for call, step in zip(self.calls, steps, strict=True)
        ]

    def timeline(self, start_ns: int, end_ns: int, split: Split) -> Timeline:
        """The timeline of [start, end), each of which is one of the moments up to which the classes are right."""
        classes = {name: time.within(start_ns, end_ns) for name, time in self.classes.items()}
        classes |= exposed_parts(self.exposed.within(start_ns, end_ns), split)
        return Timeline(start_ns, end_ns, classes, self.communication.within(start_ns, end_ns))


@dataclass(frozen=True, eq=False)
class RankRecord:
    """What is kept of a rank beside its devices.

    `shaped` are the collectives of its detailed window, read only where the light one lacks sizes. `kernel_times` are
    those of `outliers.devices`, of all its steps.
    """

    ran: RanByName
    shaped: tuple[Call, ...]
    kernel_times: Mapping[tuple[str, int], int]

    def __setstate__(self, state: dict[str, Any]) -> None:
        """From another process, with the names that other records have, too."""
        times = {(sys.intern(name), calls): ns for (name, calls), ns in state["kernel_times"].items()}
        self.__dict__.update(state, kernel_times=times)


def _shared(values: Mapping[str, Value]) -> dict[str, Value]:
    return {sys.intern(name): value for name, value in values.items()}

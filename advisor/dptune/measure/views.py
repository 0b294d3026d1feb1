"""What every figure starts from: per rank the steps, and per device its operations and windows."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dptune.measure.device.completeness import losses
from dptune.measure.device.operations import Operations, operations
from dptune.measure.host.clock_jumps import clock_jump
from dptune.measure.host.threads import Host, host
from dptune.measure.intervals import Ints
from dptune.measure.once import once_for_each
from dptune.measure.steps.sources import NO_LAUNCHES, Stepping, stepping
from dptune.measure.steps.windows import OUTSIDE, Step, launching_steps, windows
from dptune.measured import Loss, StepBasis
from dptune.runfile.window import Window
from dptune.trace.columns import Columns
from dptune.trace.events import Trace
from dptune.trace.run import RankTrace, Run

if TYPE_CHECKING:
    from dptune.measure.records.parts import DeviceRecord, RankRecord

BROKEN = "the trace breaks off, and any of its steps may lack events"


@dataclass(frozen=True, eq=False)
class DeviceView:
    """One device of one rank. `launched_in` is by operation the index of its host step, -1 outside all of them.

    With a `record`, the operations are the few that it keeps.
    """

    operations: Operations
    windows: list[Step]
    launched_in: Ints
    record: DeviceRecord | None = None


@dataclass(frozen=True, eq=False)
class RankView:
    """One window of one rank. Without steps, `no_steps` says why.

    `basis` is what marks the steps, `similarity` how alike they are (None where they are marked). `losses` are events
    of the device that the trace lacks. `synchronises`: whether a pass of the window reduced gradients; None where
    that is not known. With a `record`, the trace has no columns: only that and the records of the devices are known.
    """

    rank: int
    trace: Trace
    steps: list[Step]
    host: Host
    devices: list[DeviceView]
    no_steps: str = ""
    basis: StepBasis = "profiler_step"
    similarity: float | None = None
    losses: tuple[Loss, ...] = ()
    synchronises: bool | None = None
    record: RankRecord | None = None

    @property
    def whole(self) -> bool:
        """Whether the events are here, not a record only."""
        return self.record is None

    @property
    def losses_fatal(self) -> bool:
        """Whether so much of the device's work is lost or misdated that no step can be accounted for."""
        return any(loss.fatal for loss in self.losses)

    @property
    def columns(self) -> Columns:
        """The columns of the trace."""
        return self.trace.columns

    @property
    def base_ns(self) -> int:
        """What its times count from, ns since the epoch; 0 where they would not fit int64 then, as of no real clock."""
        columns, base_ns = self.columns, self.trace.base_ns
        if not len(columns):
            return base_ns
        farthest = max(abs(int(columns.ts_ns.min())), abs(int(columns.end_ns.max())))
        return base_ns if abs(base_ns) + farthest < 2**63 else 0

    @property
    def windows(self) -> int:
        """How many steps have a window on some device: what a count per step is divided by."""
        return len({window.number for device in self.devices for window in device.windows})


MANY_EVENTS = 1_000_000  # of a detailed window: looking for causes in more than one such takes minutes


def view(rank: int, trace: Trace, recorded: Window | None = None) -> RankView:
    """The steps and devices of a trace. The recorded window that it is of numbers the steps anew, from its own count.

    A trace that breaks off has no steady steps: its events are not in order of time, so any may lack some.
    """
    ran = operations(trace)
    stepping_result = Stepping([], why=BROKEN) if trace.partial else stepping(trace, ran)
    lacking = () if trace.partial else tuple(losses(trace, ran, stepping_result.steps))
    if not trace.partial and (jump := clock_jump(trace)) is not None:
        lacking = (jump,)
    steps = stepping_result.steps
    if recorded is not None:
        steps = [Step(recorded.first_step + at, step.start_ns, step.end_ns) for at, step in enumerate(steps)]
    devices = []
    for device_operations in ran:
        launched_in = launching_steps(trace.columns, device_operations, steps)
        found = windows(trace.columns, device_operations, steps, launched_in)
        numbers = {window.number for window in found}
        lost = [at for at, step in enumerate(steps) if step.number not in numbers]
        devices.append(DeviceView(device_operations, found, np.where(np.isin(launched_in, lost), OUTSIDE, launched_in)))
    why = stepping_result.why
    if not why and not devices:
        why = "the trace holds no operation of a device"
    if not why and not any(device.windows for device in devices):
        why = f"device operations cannot be assigned to steps, because {NO_LAUNCHES}"
    seen = RankView(
        rank, trace, steps, host(trace, ran, recorded), devices, why, stepping_result.basis, stepping_result.similarity
    )
    seen = replace(seen, synchronises=_synchronises(recorded))
    for loss in lacking:
        seen = with_loss(seen, loss)
    return seen


@once_for_each
def light_views(run: Run) -> tuple[RankView, ...]:
    """The light window of each rank whose events were read."""
    return tuple(
        view(rank.rank, rank.light, facts.window("light") if (facts := run.facts.get(rank.rank)) else None)
        for rank in run.ranks
    )


@once_for_each
def detailed_view(rank: RankTrace) -> RankView | None:
    """The detailed window of a rank, whose steps are numbered from 0; None where it has none.

    Raises TraceError where it cannot be read.
    """
    return None if rank.detailed is None else view(rank.rank, rank.detailed)


def _synchronises(recorded: Window | None) -> bool | None:
    if recorded is None or not any(recorded.backwards):
        return None
    return recorded.unsynced_backwards != recorded.backwards


def with_loss(view: RankView, loss: Loss) -> RankView:
    """The rank with what its trace lacks; without steps where that falsifies them."""
    if not loss.fatal:
        return replace(view, losses=(*view.losses, loss))
    stripped = without(view, {step.number for step in view.steps})
    return replace(stripped, losses=(*view.losses, loss), no_steps=view.no_steps or loss.text)


def busiest(view: RankView) -> list[Step]:
    """The windows of the device that has most of them; none where no device has any."""
    return max((device.windows for device in view.devices), key=len, default=[])


def without(view: RankView, numbers: AbstractSet[int]) -> RankView:
    """The rank without the steps of these numbers: what they launched lies outside all steps."""
    kept = [at for at, step in enumerate(view.steps) if step.number not in numbers]
    places = np.full(len(view.steps) + 1, OUTSIDE, dtype=np.int64)  # the last is that of OUTSIDE
    places[kept] = np.arange(len(kept))
    return replace(
        view,
        steps=[view.steps[at] for at in kept],
        devices=[
            replace(
                device,
                windows=[window for window in device.windows if window.number not in numbers],
                launched_in=places[device.launched_in],
            )
            for device in view.devices
        ],
    )


def renumbered(view: RankView, first: int) -> RankView:
    """The rank with its steps numbered anew, from `first` on."""
    by = first - view.steps[0].number
    return replace(
        view,
        steps=[replace(step, number=step.number + by) for step in view.steps],
        devices=[
            replace(device, windows=[replace(window, number=window.number + by) for window in device.windows])
            for device in view.devices
        ],
    )

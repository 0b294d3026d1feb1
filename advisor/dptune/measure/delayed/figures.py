"""How long delayed collectives are exposed, and how much of that time compute of the step could overlap."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dptune.measure.communication.calls import Call
from dptune.measure.communication.matching import RankCalls
from dptune.measure.communication.purposes import sharding_ranges
from dptune.measure.delayed.after_backward import after_backward
from dptune.measure.delayed.in_backward import in_backward
from dptune.measure.delayed.passes import BackwardPass, backward_passes, compute_stream
from dptune.measure.delayed.prefetching import not_prefetched
from dptune.measure.delayed.sent import Delayed, Sent, sent
from dptune.measure.device.longest import longer, place
from dptune.measure.device.phases import DeviceTimeline, bounds
from dptune.measure.intervals import NOTHING, Intervals
from dptune.measured import DelayCause, DelayedFigures, Place

UNSEEN = "the trace shows neither gradients of a backward pass nor hooks of FSDP"
_SEVERAL_GROUPS = "they are of several process groups, or the trace names none"
_NO_SIZE = "the trace does not show the size of each message"
_HIDDEN = "none of them is exposed"


def delayed(spent: Sequence[DeviceTimeline], ranks: Sequence[RankCalls]) -> list[DelayedFigures] | None:
    """Figures by cause, the largest first; None if no trace can show them. `ranks`: the collectives in steps."""
    found: dict[DelayCause, _Sum] = {}
    steps, shown = sum(len(device.windows) for _, device, _ in spent), False
    for spent_by in spent:
        view, device, _ = spent_by
        of_device = [each for each in ranks if (each.rank, each.device) == (view.rank, device.operations.device)]
        by_row = {call.row: call for each in of_device for call in each.calls}
        passes = backward_passes(view)
        shown |= bool(passes) or len(sharding_ranges(view.columns)) > 0
        if not by_row:
            continue
        of = sent(view, device, list(by_row.values()))
        for cause, each in _by_cause(spent_by, passes, of, by_row):
            found.setdefault(cause, _Sum()).add(spent_by, of, by_row, each)
    figures = [total.figures(cause, steps) for cause, total in found.items() if total.calls]
    return sorted(figures, key=lambda delay: -delay.could_hide_ns) if shown else None


def _by_cause(
    spent_by: DeviceTimeline, passes: Sequence[BackwardPass], of: Sent, by_row: dict[int, Call]
) -> list[tuple[DelayCause, Iterable[Delayed]]]:
    view, device, _ = spent_by
    return [
        ("after_backward", after_backward(view, device, passes, of, by_row)),
        ("waited_for_in_backward", in_backward(view, device, passes, of)),
        ("not_prefetched", not_prefetched(view, device, of)),
    ]


@dataclass
class _Sum:
    """The collectives of one cause, over the devices added so far."""

    calls: list[Call] = field(default_factory=list)
    streams: set[int] = field(default_factory=set)
    on_compute_stream: bool = True
    exposed_ns: int = 0
    could_hide_ns: int = 0
    most_share: float = 0.0
    most_transfer_share: float = 0.0
    longest: Place | None = None

    def add(self, spent_by: DeviceTimeline, of: Sent, by_row: dict[int, Call], each: Iterable[Delayed]) -> None:
        """Add the collectives of one device."""
        view, device, timeline = spent_by
        begin, end = bounds(device.windows)
        computing, transfer = (
            timeline.classes["compute_ns"],
            timeline.classes["exposed_transfer_ns"] | timeline.classes["exposed_unsplit_ns"],
        )
        exposed, hidden_ns, most_ns = NOTHING, 0, 0
        for delay in each:
            rows = of.rows[delay.places]
            whole = Intervals.union(view.columns.ts_ns[rows], view.columns.ends(rows))
            pieces = transfer & whole
            most_ns += delay.most_ns((whole - computing).total_ns)
            hidden_ns += delay.hidden_ns(pieces.total_ns)
            exposed |= pieces
            self.calls += [by_row[row] for row in rows.tolist()]
            if not device.operations.on_cpu:
                self.streams.update(view.columns.queue[rows].tolist())
                self.on_compute_stream &= self.streams == {compute_stream(view, device)}
        self.exposed_ns += int(exposed.lengths(begin, end).sum())
        self.could_hide_ns += hidden_ns
        steps_ns = max(1, int((end - begin).sum()))
        self.most_share = max(self.most_share, most_ns / steps_ns)
        self.most_transfer_share = max(self.most_transfer_share, hidden_ns / steps_ns)
        self.longest = longer(self.longest, place(view.rank, exposed, device.windows))

    def figures(self, cause: DelayCause, steps: int) -> DelayedFigures:
        """The figures of all devices; `steps` is the total number of their steps."""
        groups = {call.group for call in self.calls}
        sizes = [call.message_bytes for call in self.calls if call.message_bytes is not None]
        known = {
            "group": (next(iter(groups)) if len(groups) == 1 else None, _SEVERAL_GROUPS),
            "bytes_per_step": (sum(sizes) / steps if len(sizes) == len(self.calls) else None, _NO_SIZE),
            "longest": (self.longest, _HIDDEN),
        }
        return DelayedFigures.of(
            known,
            cause=cause,
            kinds=sorted({call.kind for call in self.calls}),
            streams=sorted(self.streams),
            on_compute_stream=bool(self.streams) and self.on_compute_stream,
            calls_per_step=len(self.calls) / steps,
            exposed_ns=self.exposed_ns,
            could_hide_ns=self.could_hide_ns,
            most_share=self.most_share,
            most_transfer_share=self.most_transfer_share,
        )

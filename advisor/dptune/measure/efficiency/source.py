"""Which rank the operators are read from, and what is known of its device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from dptune.measure.device.architectures import Architecture, architecture_of
from dptune.measure.device.matmul import device_of
from dptune.measure.efficiency.measured_peaks import NOT_RECORDED, MeasuredPeaks, measured_peaks
from dptune.measure.efficiency.tokens import Tokens, tokens
from dptune.measure.steps.windows import Step
from dptune.measure.views import RankView
from dptune.trace.run import Run

_NO_DETAILED = "the recording has no detailed window, which records operator input sizes: record with `--detailed 3`"
_LOST_DETAILED = (
    "the detailed window, which records operator input sizes, is missing or damaged: copy its trace again, or record "
    "again"
)


@dataclass(frozen=True, eq=False)
class Source:
    """The rank whose operators are read: the window that they are from, and the name of its device.

    `architecture` is what its kernels show where the trace does not name the device. `whole_ns`: how long its devices
    were recorded, where no step was found. `cpu_peaks` are those of a CPU, or why there are none.
    """

    view: RankView
    window: Literal["light", "detailed"]
    device_name: str
    architecture: Architecture | None = None
    whole_ns: int | None = None
    cpu_peaks: MeasuredPeaks | str = NOT_RECORDED

    @cached_property
    def tokens(self) -> Tokens | None:
        """Tokens of the rank in a step, where its trace shows them."""
        return tokens(self.view) if self.whole_ns is None else None

    @property
    def scope(self) -> Literal["steps", "recording"]:
        """What counts as steps."""
        return "steps" if self.whole_ns is None else "recording"

    @property
    def devices(self) -> int:
        """On how many devices the rank computes."""
        return sum(bool(device.windows) for device in self.view.devices)

    @property
    def on_cpu(self) -> bool:
        """Whether these are the host's own threads."""
        return all(device.operations.on_cpu for device in self.view.devices)


def source_of(
    run: Run, detail: RankView | None, stepped: Sequence[RankView], undivided: Sequence[RankView]
) -> Source | str:
    """The detailed window of a recording, whose light one has no sizes; else the first rank with steps, or why not.

    `undivided`: where no rank has steps, the ranks with all that their devices did as one step.
    """
    if run.facts and detail is None:
        recorded = any(rank.detailed_source for rank in run.ranks) or _lost_detailed(run)
        return _LOST_DETAILED if recorded else _NO_DETAILED
    if not stepped:
        return _source(run, _whole(undivided[0]), "light", _recorded_ns(undivided[0]))
    return _source(run, detail or stepped[0], "light" if detail is None else "detailed", None)


def _lost_detailed(run: Run) -> bool:
    """Whether a rank says that it wrote the trace of a detailed window."""
    windows = [facts.window("detailed") for facts in run.facts.values()]
    return any(window is not None and window.trace for window in windows)


def _source(run: Run, read: RankView, window: Literal["light", "detailed"], whole_ns: int | None) -> Source:
    facts, listed = run.facts.get(read.rank), device_of(read)
    name = (facts.device.name if facts and facts.device else None) or (listed.name if listed else "")
    shown = None if name else architecture_of(read)
    return Source(read, window, name, shown, whole_ns, measured_peaks(run.facts, read.rank, run.record))


def _recorded_ns(view: RankView) -> int:
    (step,) = view.steps
    return step.end_ns - step.start_ns


def _whole(view: RankView) -> RankView:
    """The rank with its whole trace as one step: what the devices do was launched before it starts there."""
    columns = view.columns
    return replace(view, steps=[Step(0, int(columns.ts_ns.min()), int((columns.ts_ns + columns.dur_ns).max()) + 1)])

"""How far traced steps are from others like them: what a model of some steps misses of those that it does not hold.

Steps are alike that take the same turn (`measure.steps.groups`), and in which the caching allocator frees memory of the
device or does not: it does so where it found none, as in a first step or after a larger batch, waits for the device,
and allocates anew. No other step shows what that takes, so a step that is alone of its kind is compared with none.

The window of the last step ends with its last operation, for no next step was recorded. Where all others took as long
on the device as on the host, so does the last. Where not, steps are compared from end to end.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from dptune.measure.views import DeviceView, RankView
from dptune.trace.kernels import LAUNCH_CATEGORIES

_FREES = re.compile(r"(cuda|hip)Free$")
NONE_ALIKE = "no two traced steps are alike: in some the allocator freed device memory"
_FEWEST = 2  # steps of a kind, one to hold out
_AS_LONG = 0.05  # of a step: how far the device's and the host's may be apart


@dataclass(frozen=True)
class HeldOut:
    """`share`: difference between every second step of a kind and the others, / a step; None where none are alike.

    `freeing_ns` are by number the steps in which the allocator frees memory where it does not in most, and `usual_ns`
    the median of the others; empty and 0 where no step or most do.
    """

    share: float | None
    freeing_ns: Mapping[int, float]
    usual_ns: float

    @property
    def sentence(self) -> str:
        """Which steps are unlike the others, without a full stop; empty where none are."""
        if not self.freeing_ns:
            return ""
        several = len(self.freeing_ns) > 1
        numbers = ", ".join(map(str, self.freeing_ns))
        return (
            f"the allocator freed device memory in step{'s' if several else ''} {numbers}, which took "
            f"{median(self.freeing_ns.values()) / 1e6:.4g} ms{' in the median' if several else ''}, other steps "
            f"{self.usual_ns / 1e6:.4g} ms: the measured step is of both"
        )


def held_out(views: Sequence[RankView], groups: Sequence[Sequence[int]]) -> HeldOut:
    """Of the steps of all ranks; `groups` are the numbers of those that take the same turn."""
    took = {number: float(median(each)) for number, each in _lengths(views).items()}
    freeing = _freeing(views) & took.keys()
    turn = {number: at for at, numbers in enumerate(groups) for number in numbers}
    kinds: dict[tuple[int, bool], list[float]] = defaultdict(list)
    for number in sorted(took):
        kinds[turn.get(number, -1), number in freeing].append(took[number])
    off_ns, of_ns = 0.0, 0.0
    for steps in kinds.values():
        if len(steps) >= _FEWEST:
            off_ns += len(steps) * abs(median(steps[::2]) - median(steps[1::2]))
            of_ns += len(steps) * median(steps)
    others = [ns for number, ns in took.items() if number not in freeing]
    few = 0 < len(freeing) < len(others)
    return HeldOut(
        share=off_ns / of_ns if of_ns else None,
        freeing_ns={number: took[number] for number in sorted(freeing)} if few else {},
        usual_ns=float(median(others)) if few else 0.0,
    )


def _lengths(views: Sequence[RankView]) -> dict[int, list[int]]:
    """By number of a step how long it took on each rank."""
    found: dict[int, list[int]] = defaultdict(list)
    for view in views:
        device = max(view.devices, key=lambda candidate: len(candidate.windows), default=None)
        if device is None:
            continue
        for number, length_ns in (_as_on_host(view, device) or _between_ends(view, device)).items():
            found[number].append(length_ns)
    return found


def _as_on_host(view: RankView, device: DeviceView) -> dict[int, int]:
    """The windows, the last as long as the step of the host; none where others are not as long as that."""
    found = {window.number: window.length_ns for window in device.windows if not window.open_ended}
    host = {step.number: step.length_ns for step in view.steps}
    if not found or any(abs(host.get(number, 0) - ns) > _AS_LONG * ns for number, ns in found.items()):
        return {}
    last = device.windows[-1].number
    return {**found, last: host[last]} if device.windows[-1].open_ended and last in host else found


def _between_ends(view: RankView, device: DeviceView) -> dict[int, int]:
    """From the end of what one step launched to that of the next: starts move where the host runs ahead."""
    over: dict[int, int] = {}
    for at, step in enumerate(view.steps):
        rows = device.operations.rows[device.launched_in == at]
        if len(rows):
            over[step.number] = int(view.columns.ends(rows).max())
    return {number: over[number] - over[number - 1] for number in over if number - 1 in over}


def _freeing(views: Sequence[RankView]) -> set[int]:
    """The numbers of the steps of the host in which a rank frees memory of the device."""
    found = set()
    for view in views:
        calls_ns = view.columns.ts_ns[view.columns.rows(LAUNCH_CATEGORIES, _FREES.match)]
        for step in view.steps:
            if ((calls_ns >= step.start_ns) & (calls_ns < step.end_ns)).any():
                found.add(step.number)
    return found

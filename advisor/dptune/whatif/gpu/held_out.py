"""How much traced steps of the same kind differ: the error that a model of some steps has on the others.

Steps are of the same kind if they are in the same group (`measure.steps.groups`), and if the caching allocator frees
device memory in both or in neither. It frees memory when an allocation fails, as in a first step or after a larger
batch; it then waits for the device and allocates again. Other steps do not show how long this takes, so a step that is
the only one of its kind is compared with none.

No step was recorded after the last one, so its window ends with its last operation. If all other steps took as long on
the device as on the host, the last one is given its time on the host. Else all steps are compared by their ends.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from dptune.measure.views import DeviceView, RankView
from dptune.measured import in_ms
from dptune.trace.kernels import LAUNCH_CATEGORIES

_FREES = re.compile(r"(cuda|hip)Free$")
NONE_ALIKE = "no two traced steps are comparable: the allocator freed device memory in some"
_FEWEST = 2  # steps of a kind, one to hold out
_AS_LONG = 0.05  # of a step: how far the device's and the host's may be apart


@dataclass(frozen=True)
class HeldOut:
    """`share`: difference between alternate steps of a kind, as a share of a step; None if no two are of one kind.

    `freeing_ns`: by number, the time of the steps in which the allocator frees memory, if these are a minority, and
    `usual_ns` the median time of the others; else empty and 0. `took_ns`: by number, the time of every step.
    """

    share: float | None
    freeing_ns: Mapping[int, float]
    usual_ns: float
    took_ns: Mapping[int, float]

    def alike(self, numbers: Collection[int]) -> list[int]:
        """For each step that is not one of these, that of these which is of its kind and took as long.

        None if all steps are of one kind, or these have none of its kind.
        """
        found = []
        for number in sorted(self.took_ns.keys() - numbers) if self.freeing_ns else ():
            is_freeing, took = number in self.freeing_ns, self.took_ns[number]
            same = [other for other in numbers if other in self.took_ns and (other in self.freeing_ns) == is_freeing]
            found += sorted(same, key=lambda other: abs(self.took_ns[other] - took))[:1]
        return found

    @property
    def sentence(self) -> str:
        """Which steps differ in kind from the others, without a full stop; empty if none do."""
        if not self.freeing_ns:
            return ""
        several = len(self.freeing_ns) > 1
        numbers = ", ".join(map(str, self.freeing_ns))
        return (
            f"the allocator freed device memory in step{'s' if several else ''} {numbers} "
            f"({'median ' if several else ''}{in_ms(median(self.freeing_ns.values()))} ms; other "
            f"steps {in_ms(self.usual_ns)} ms), which the measured step time includes"
        )


def held_out(views: Sequence[RankView], groups: Sequence[Sequence[int]]) -> HeldOut:
    """The difference of the steps of all ranks; `groups` are the numbers of steps of the same group."""
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
        took_ns=took,
    )


def _lengths(views: Sequence[RankView]) -> dict[int, list[int]]:
    """By step number, how long it took on each rank."""
    found: dict[int, list[int]] = defaultdict(list)
    for view in views:
        device = max(view.devices, key=lambda candidate: len(candidate.windows), default=None)
        if device is None:
            continue
        for number, length_ns in (_as_on_host(view, device) or _between_ends(view, device)).items():
            found[number].append(length_ns)
    return found


def _as_on_host(view: RankView, device: DeviceView) -> dict[int, int]:
    """The lengths of the windows, the last as long as the host's step; empty if others differ from theirs."""
    found = {window.number: window.length_ns for window in device.windows if not window.open_ended}
    host = {step.number: step.length_ns for step in view.steps}
    if not found or any(abs(host.get(number, 0) - ns) > _AS_LONG * ns for number, ns in found.items()):
        return {}
    last = device.windows[-1].number
    return {**found, last: host[last]} if device.windows[-1].open_ended and last in host else found


def _between_ends(view: RankView, device: DeviceView) -> dict[int, int]:
    """From the end of what one step launched to that of the next: starts shift if the host runs ahead."""
    over: dict[int, int] = {}
    for at, step in enumerate(view.steps):
        rows = device.operations.rows[device.launched_in == at]
        if len(rows):
            over[step.number] = int(view.columns.ends(rows).max())
    return {number: over[number] - over[number - 1] for number in over if number - 1 in over}


def _freeing(views: Sequence[RankView]) -> set[int]:
    """The numbers of the host's steps in which a rank frees device memory."""
    found = set()
    for view in views:
        calls_ns = view.columns.ts_ns[view.columns.rows(LAUNCH_CATEGORIES, _FREES.match)]
        for step in view.steps:
            if ((calls_ns >= step.start_ns) & (calls_ns < step.end_ns)).any():
                found.add(step.number)
    return found

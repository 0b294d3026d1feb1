"""All-gathers of fully_shard in a program: the parameters of a unit, before each pass that uses them.

torch names the ranges: `FSDP::all_gather (layers.0)` encloses the calls that copy a shard in and gather the unit,
`FSDP::all_gather_copy_out (layers.0)` those that wait for it on the compute stream and copy it out. Without the latter
the next call that launches something copies it out.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dptune.measure.host.enclosing import NOWHERE, Ranges
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.intervals import Ints
from dptune.measure.steps.windows import OUTSIDE
from dptune.measure.views import DeviceView, RankView
from dptune.trace.kernels import RANGE_CATEGORIES, Work
from dptune.whatif.gpu.reductions import Places

ISSUES = re.compile(r"FSDP::all_gather(?: \((?P<unit>.*)\))?$")
COPIES_OUT = re.compile(r"FSDP::all_gather_copy_out(?: \((?P<unit>.*)\))?$")
IN_BACKWARD = re.compile(r"FSDP::(pre_backward\b|backward_prefetch for )")
_AHEAD = re.compile(r"FSDP::\w+_prefetch for ")


@dataclass(frozen=True)
class Gather:
    """One unit that one rank gathers for one pass.

    `operations` are the places of begins and ends, in the order of launching, the collective last; `call` is that of
    the first call that launches one of them. `used_call` launches the copy out of the gathered buffer, `used_end` is
    when that is over; `copies` are all operations that copy out, empty where no range encloses them. `prefetched`:
    another unit issued it, right after its own copy out.
    """

    rank: int
    step: int
    backward: bool
    unit: str
    operations: tuple[tuple[int, int], ...]
    call: int
    used_call: int
    used_end: int
    copies: tuple[tuple[int, int], ...] = ()
    prefetched: bool = False

    def moved(self, places: Sequence[int]) -> Gather:
        """The same where each item has another place."""
        operations, copies = (
            tuple((places[begin], places[end]) for begin, end in each) for each in (self.operations, self.copies)
        )
        call, used_call, used_end = (places[item] for item in (self.call, self.used_call, self.used_end))
        return replace(self, operations=operations, call=call, used_call=used_call, used_end=used_end, copies=copies)


def gathers(view: RankView, device: DeviceView, places: Places) -> Iterator[Gather]:
    """Those of one rank in order of time, as far as the copy out of each was recorded."""
    columns, operations = view.columns, device.operations
    issuing, copying = (columns.rows(RANGE_CATEGORIES, pattern.match) for pattern in (ISSUES, COPIES_OUT))
    if not len(issuing):
        return
    known = operations.launch != UNLAUNCHED
    rows, launches, steps = operations.rows[known], operations.launch[known], device.launched_in[known]
    communicating = operations.work[known] == Work.COMMUNICATION
    order = np.argsort(columns.ts_ns[launches], kind="stable")
    rows, launches, steps, communicating = (each[order] for each in (rows, launches, steps, communicating))
    called_ns = columns.ts_ns[launches]
    issued = by_range(view, issuing, launches)
    used = by_range(view, copying, launches)
    backward, ahead = (
        Ranges.of_rows(columns, columns.rows(RANGE_CATEGORIES, pattern.match)) for pattern in (IN_BACKWARD, _AHEAD)
    )
    copies: dict[str, list[tuple[int, int, int]]] = defaultdict(list)  # by unit: when, the first operation, the range
    for at, places_in in used.items():
        copies[unit_of(COPIES_OUT, columns.name(at))].append((int(columns.ts_ns[at]), places_in[0], at))
    issuing = issuing[np.argsort(columns.ts_ns[issuing], kind="stable")]
    in_backward, prefetched = (
        (ranges.at(columns.thread[issuing], columns.ts_ns[issuing]) != NOWHERE).tolist() for ranges in (backward, ahead)
    )
    for at, is_backward, is_prefetched in zip(issuing.tolist(), in_backward, prefetched, strict=True):
        of_gather = issued.get(at, [])
        if not of_gather or not communicating[of_gather[-1]]:
            continue
        unit, since = unit_of(ISSUES, columns.name(at)), int(columns.ts_ns[at])
        copied: list[int] = []
        if len(copying):
            found = next(((place, number) for when, place, number in sorted(copies[unit]) if when >= since), None)
            out, copied = (len(rows), copied) if found is None else (found[0], used[found[1]])
        else:
            out = int(np.searchsorted(called_ns, columns.ends(at)))
        if out == len(rows) or steps[of_gather[0]] == OUTSIDE:
            continue
        yield Gather(
            rank=view.rank,
            step=view.steps[int(steps[of_gather[0]])].number,
            backward=is_backward,
            unit=unit,
            operations=spans_of(places, view.rank, rows[of_gather]),
            call=places[view.rank, "call", int(launches[of_gather[0]])],
            used_call=places[view.rank, "call", int(launches[out])],
            used_end=places[view.rank, "end", int(rows[out])],
            copies=spans_of(places, view.rank, rows[copied]),
            prefetched=is_prefetched,
        )


def spans_of(places: Places, rank: int, rows: Ints) -> tuple[tuple[int, int], ...]:
    """The places of the begins and ends of these operations of a rank."""
    return tuple((places[rank, "begin", row], places[rank, "end", row]) for row in rows.tolist())


def by_range(view: RankView, ranges: Ints, launches: Ints) -> dict[int, list[int]]:
    """By row of a range the places of the launches in it, in order of time."""
    columns = view.columns
    inside = Ranges.of_rows(columns, ranges).at(columns.thread[launches], columns.ts_ns[launches])
    found: dict[int, list[int]] = defaultdict(list)
    for place in np.flatnonzero(inside != NOWHERE).tolist():
        found[int(ranges[inside[place]])].append(place)
    return found


def unit_of(pattern: re.Pattern[str], name: str) -> str:
    """The unit that the name of a range names."""
    named = pattern.match(name)
    return (named["unit"] or "") if named is not None else ""

"""How much of the host's time in hooks of fully_shard each unit takes, whatever it holds: the rest is for its tensors.

A unit's hooks issue a gather, a copy out and a reduction, and go through its tensors before and after each of them
(torch 2.13, distributed/fsdp/_fully_shard/_fsdp_param_group.py, `foreach_all_gather` and `foreach_reduce`). What the
trace tells of that comes first:

1. Units of different numbers of tensors, such as the root and blocks: a line through what their hooks take.
2. Operators: torch calls at least one for each tensor in a gather, a copy out and a reduction. Where a range has
   operators, and none as often as the unit has tensors, nothing in it grows with these; else at least what they take.
3. Else both as measured on CPUs: 0.73 ms for a unit and 0.079 ms for each tensor (units of 2 to 48 tensors, the fake
   process group, with the profiler); 0.4 and 0.04 ms over gloo (`whatif/cpu/units.py`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import mean, median

import numpy as np

from dptune.measure.host.enclosing import NOWHERE, Ranges
from dptune.measure.intervals import Ints
from dptune.trace.columns import Columns
from dptune.trace.kernels import OPERATOR_CATEGORIES, RANGE_CATEGORIES
from dptune.whatif.gpu.assumed import Assumed
from dptune.whatif.gpu.unit_reductions import UnitReduction

_OF_UNITS = re.compile(r"FSDP::(?!root_|inputs_to_device)(?P<kind>\w+)(?: for (?P<next>.*)| \((?P<unit>.*)\))?$")
_ALL = re.compile(r"FSDP::")
_GATHERING = frozenset({"all_gather", "all_gather_copy_out"})
_THROUGH_TENSORS = _GATHERING | {"post_backward_reduce"}
_PER_TENSOR = Assumed(0.2, 0.1, 0.04)  # of what each unit takes: 0.11, 0.10 and about 0.09 (an H200, 12 tensors)
_DIFFERENT = 2.0  # times as many tensors: units whose hooks show what both take
_UNSURE = 0.2  # of such a share
_FEW = 4  # tensors, from which on operators for each differ from others that come several times
UNKNOWN = Assumed(0.2, 0.5, 1.0)


@dataclass(frozen=True)
class _Hook:
    """A range of a unit with so many tensors: ns without other ranges of fully_shard that it holds.

    `shown_ns` are in operators that come as often as the unit has tensors; None where the range shows no operators, or
    does not go through the tensors.
    """

    kind: str
    unit: str
    tensors: int
    alone_ns: int
    shown_ns: int | None = None

    def unit_ns(self, per_tensor: float) -> float:
        """What is for the unit where each tensor takes so many times that."""
        return self.alone_ns / (1 + per_tensor * self.tensors)

    def seen_ns(self, per_tensor: float, *, no_tensors: bool) -> float:
        """The same, with what operators show. `no_tensors`: gathers show none for each tensor."""
        if self.shown_ns is None:
            return float(self.alone_ns) if no_tensors else self.unit_ns(per_tensor)
        if not self.shown_ns:
            return float(self.alone_ns)
        return max(0.0, min(self.unit_ns(per_tensor), self.alone_ns - self.shown_ns))


def unit_share(ranks: Iterable[Columns], reductions: Sequence[UnitReduction]) -> Assumed:
    """The share of the median rank, at three sides; `ranks` are the events of each."""
    tensors: dict[str, list[int]] = defaultdict(list)
    for reduction in reductions:
        tensors[reduction.unit].append(len(reduction.ready))
    counts = {unit: round(median(each)) for unit, each in tensors.items() if median(each) >= 1}
    found = [share for columns in ranks if (share := _of_rank(columns, counts)) is not None]
    return Assumed(*map(median, zip(*found, strict=True))) if found else UNKNOWN


def _of_rank(columns: Columns, tensors: Mapping[str, int]) -> Assumed | None:
    rows = columns.rows(RANGE_CATEGORIES, _ALL.match)
    ranges = Ranges.of_rows(columns, rows)
    alone_ns = _alone_ns(columns.dur_ns[rows], ranges.parents())
    total_ns, hooks = int(alone_ns.sum()), _hooks(columns, rows, ranges, alone_ns, tensors)
    if not hooks or not total_ns:
        return None
    fitted = _fitted(hooks)
    if fitted is not None:
        share = sum(hook.unit_ns(fitted) for hook in hooks) / total_ns
        return Assumed(max(0.0, share - _UNSURE), share, min(1.0, share + _UNSURE))
    measured = Assumed(*(sum(hook.unit_ns(each) for hook in hooks) / total_ns for each in _PER_TENSOR))
    shown = [hook.shown_ns for hook in hooks if hook.kind in _GATHERING and hook.shown_ns is not None]
    no_tensors = bool(shown) and not any(shown)
    seen = [sum(hook.seen_ns(each, no_tensors=no_tensors) for hook in hooks) / total_ns for each in _PER_TENSOR]
    return Assumed(measured.middle, seen[1], seen[2]) if no_tensors else Assumed(*seen)


def _alone_ns(durations_ns: Ints, parents: Ints) -> Ints:
    """What ranges take without those directly inside them."""
    alone_ns = durations_ns.copy()
    inside = parents != NOWHERE
    np.subtract.at(alone_ns, parents[inside], durations_ns[inside])
    return np.maximum(alone_ns, 0)


def _hooks(columns: Columns, rows: Ints, ranges: Ranges, alone_ns: Ints, tensors: Mapping[str, int]) -> list[_Hook]:
    """Those of units with known tensors."""
    operators, found = _operators(columns, ranges), list[_Hook]()
    for place, (row, alone) in enumerate(zip(rows.tolist(), alone_ns.tolist(), strict=True)):
        named = _OF_UNITS.match(columns.name(row))
        if named is None:
            continue
        unit, kind, shown = str(named["unit"] or named["next"] or ""), str(named["kind"]), None
        count = tensors.get(unit, 0)
        if not count:
            continue
        if kind in _THROUGH_TENSORS and count >= _FEW and place in operators:
            shown = max((took for times, took in operators[place] if times >= count), default=0)
        found.append(_Hook(kind, unit, count, alone, shown))
    return found


def _operators(columns: Columns, ranges: Ranges) -> dict[int, list[tuple[int, int]]]:
    """By range how often each operator comes in it, and how long it takes in total."""
    operators = columns.rows(OPERATOR_CATEGORIES)
    at = ranges.at(columns.thread[operators], columns.ts_ns[operators])
    operators, at = operators[at != NOWHERE], at[at != NOWHERE]
    pairs, number = np.unique(np.stack((at, columns.name_id[operators])), axis=1, return_inverse=True)
    times = np.bincount(number.reshape(-1), minlength=pairs.shape[1])
    took_ns = np.bincount(number.reshape(-1), weights=columns.dur_ns[operators], minlength=pairs.shape[1])
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for place, several, took in zip(pairs[0].tolist(), times.tolist(), took_ns.tolist(), strict=True):
        found[place].append((several, round(took)))
    return found


def _fitted(hooks: Sequence[_Hook]) -> float | None:
    """What a tensor takes / what a unit takes: by a line for each kind of range. None where units are alike."""
    kinds: dict[str, dict[tuple[str, int], list[int]]] = defaultdict(lambda: defaultdict(list))
    for hook in hooks:
        kinds[hook.kind][hook.unit, hook.tensors].append(hook.alone_ns)
    of_units, of_tensors = 0.0, 0.0
    for units in kinds.values():
        points = [(count, median(each)) for (_, count), each in units.items()]
        counts = [count for count, _ in points]
        if max(counts) < _DIFFERENT * min(counts):
            continue
        middle, usual_ns = mean(counts), mean(ns for _, ns in points)
        apart = sum((count - middle) ** 2 for count in counts)
        slope = max(0.0, sum((count - middle) * (ns - usual_ns) for count, ns in points) / apart)
        of_units += max(0.0, usual_ns - slope * middle)
        of_tensors += slope
    if not of_units + of_tensors:
        return None
    return of_tensors / of_units if of_units else inf

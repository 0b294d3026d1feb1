"""How much of the host's time in hooks of fully_shard each unit takes, whatever it holds: the rest is for its tensors.

A unit's hooks issue a gather, a copy out and a reduction, and go through its tensors before and after each of them
(torch 2.13, distributed/fsdp/_fully_shard/_fsdp_param_group.py, `foreach_all_gather` and `foreach_reduce`). What the
trace tells of that comes first:

1. Units of different numbers of tensors, such as the root and blocks: a line through what their hooks take.
2. Operators: torch calls at least one for each tensor in a gather, a copy out and a reduction. Where ranges have
   operators, and none as often as the unit has tensors, nothing in the trace grows with these.
3. Else both as measured on CPUs: 0.73 ms for a unit and 0.079 ms for each tensor (units of 2 to 48 tensors, the fake
   process group, with the profiler); 0.4 and 0.04 ms over gloo (`whatif/cpu/units.py`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
_THROUGH_TENSORS = frozenset({"all_gather", "all_gather_copy_out", "post_backward_reduce"})
_PER_TENSOR = Assumed(0.2, 0.1, 0.04)  # of what each unit takes: 0.11, 0.10 and about 0.09 (an H200, 12 tensors)
_DIFFERENT = 2.0  # times as many tensors: units whose hooks show what both take
_UNSURE = 0.2  # of such a share
_FEW = 4  # tensors, from which on operators for each differ from others that come several times
UNKNOWN = Assumed(0.2, 0.5, 1.0)


@dataclass(frozen=True)
class _Hook:
    """What one kind of range took of one unit: ns in each, without other ranges of fully_shard that it holds."""

    kind: str
    unit: str
    own_ns: tuple[int, ...]


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
    own_ns = _own_ns(columns.dur_ns[rows], ranges.parents())
    hooks = [hook for hook in _hooks(columns, rows, own_ns) if hook.unit in tensors]
    total_ns = int(own_ns.sum())
    if not hooks or not total_ns:
        return None
    fitted = _fitted(hooks, tensors)
    if fitted is not None:
        share = sum(_per_unit_ns(hook, tensors, fitted) for hook in hooks) / total_ns
        return Assumed(max(0.0, share - _UNSURE), share, min(1.0, share + _UNSURE))
    measured = (sum(_per_unit_ns(hook, tensors, each) for hook in hooks) / total_ns for each in _PER_TENSOR)
    least, middle, most = measured
    whole = sum(sum(hook.own_ns) for hook in hooks) / total_ns
    return (
        Assumed(middle, whole, whole)
        if _shows_no_tensors(columns, rows, ranges, tensors)
        else Assumed(least, middle, most)
    )


def _own_ns(durations_ns: Ints, parents: Ints) -> Ints:
    """What ranges take without those directly inside them."""
    own_ns = durations_ns.copy()
    inside = parents != NOWHERE
    np.subtract.at(own_ns, parents[inside], durations_ns[inside])
    return np.maximum(own_ns, 0)


def _hooks(columns: Columns, rows: Ints, own_ns: Ints) -> Iterator[_Hook]:
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row, own in zip(rows.tolist(), own_ns.tolist(), strict=True):
        named = _OF_UNITS.match(columns.name(row))
        if named is not None:
            found[named["kind"], named["unit"] or named["next"] or ""].append(own)
    return (_Hook(kind, unit, tuple(each)) for (kind, unit), each in found.items())


def _fitted(hooks: Sequence[_Hook], tensors: Mapping[str, int]) -> float | None:
    """What a tensor takes / what a unit takes: by a line for each kind of range. None where units are alike."""
    kinds: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for hook in hooks:
        kinds[hook.kind].append((tensors[hook.unit], median(hook.own_ns)))
    of_units, of_tensors = 0.0, 0.0
    for points in kinds.values():
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
    return of_tensors / of_units if of_units else float("inf")


def _per_unit_ns(hook: _Hook, tensors: Mapping[str, int], per_tensor: float) -> float:
    return sum(hook.own_ns) / (1 + per_tensor * tensors[hook.unit])


def _shows_no_tensors(columns: Columns, rows: Ints, ranges: Ranges, tensors: Mapping[str, int]) -> bool:
    """Whether ranges that go through the tensors of a unit have operators, but none for each tensor."""
    operators = columns.rows(OPERATOR_CATEGORIES)
    at = ranges.at(columns.thread[operators], columns.ts_ns[operators])
    operators, at = operators[at != NOWHERE], at[at != NOWHERE]
    pairs, counts = np.unique(np.stack((at, columns.name_id[operators])), axis=1, return_counts=True)
    most: dict[int, int] = {}
    for place, count in zip(pairs[0].tolist(), counts.tolist(), strict=True):
        most[place] = max(count, most.get(place, 0))
    found = False
    for place, count in most.items():
        named = _OF_UNITS.match(columns.name(int(rows[place])))
        if named is None or named["kind"] not in _THROUGH_TENSORS:
            continue
        of_unit = tensors.get(named["unit"] or "", 0)
        if of_unit >= _FEW:
            if count >= of_unit:
                return False
            found = True
    return found

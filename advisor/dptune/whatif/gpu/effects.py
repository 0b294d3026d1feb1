"""What changes do to a step: kernels and transfers that then overlap slow each other, and the direction of the change.

Each item starts when the last of what it waits for has ended, so where nothing takes longer, no item is later. A mean
of few steps may still grow: the first step, which is not counted, may gain what the others had gained before.
"""

from __future__ import annotations

from collections.abc import Mapping

from dptune.knobs import Value
from dptune.whatif.gpu.assumed import Side
from dptune.whatif.gpu.changes import changed
from dptune.whatif.gpu.contention import contended
from dptune.whatif.gpu.program import Program
from dptune.whatif.gpu.uncertainty import unchanged

_SHORTEN = {"straggler.removed"}


def in_full(program: Program, changes: Mapping[str, Value], side: Side = Side.MIDDLE) -> Program:
    """The program after changes, with kernels slowed down by the transfers that then overlap them."""
    return _contended(program, changed(program, changes, side))


def effect(program: Program, changes: Mapping[str, Value], step_ns: float) -> tuple[Program, float, int]:
    """The same, its step / that of `program`, which is `step_ns`, and the only way in which that can differ from 1.

    1: changes only lengthen what they change; -1: they only shorten it; 0: both, or neither. A rank that is no longer
    late takes no longer than before, though some of its calls may.
    """
    only_changed = changed(program, changes)
    other = _contended(program, only_changed)
    ratio = other.step_ns() / step_ns
    lengthens, shortens = _directions(program, only_changed)
    way = -shortens if changes.keys() == _SHORTEN else lengthens - shortens
    return other, (max if way > 0 else min)(1.0, ratio) if way else ratio, way


def _contended(before: Program, after: Program) -> Program:
    return after if unchanged(before, after) else contended(after)


def _directions(before: Program, after: Program) -> tuple[bool, bool]:
    """Whether anything takes longer than before, and whether anything takes less; both where other things happen."""
    if len(before.edges) != len(after.edges) or before.steps is not after.steps:
        return True, True
    longer = shorter = False
    for old, new in zip(before.edges, after.edges, strict=True):
        if old is new:
            continue
        if [edge.item for edge in old] != [edge.item for edge in new]:
            return True, True
        lags = [(before_edge.lag_ns, edge.lag_ns) for before_edge, edge in zip(old, new, strict=True)]
        longer = longer or any(now > then for then, now in lags)
        shorter = shorter or any(now < then for then, now in lags)
    return longer, shorter

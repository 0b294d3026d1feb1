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


def in_full(program: Program, changes: Mapping[str, Value], side: Side = Side.MIDDLE) -> Program:
    """The program after changes, with kernels slowed down by the transfers that then overlap them."""
    return _contended(program, changed(program, changes, side))


def effect(program: Program, changes: Mapping[str, Value], step_ns: float) -> tuple[Program, float]:
    """The same, and its step / that of `program`, which is `step_ns`: at least 1 where changes only lengthen what they
    change, at most 1 where they only shorten it.
    """
    only_changed = changed(program, changes)
    other = _contended(program, only_changed)
    ratio = other.step_ns() / step_ns
    lengthens, shortens = _directions(program, only_changed)
    if lengthens and not shortens:
        ratio = max(1.0, ratio)
    elif shortens and not lengthens:
        ratio = min(1.0, ratio)
    return other, ratio


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

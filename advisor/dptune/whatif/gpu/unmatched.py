"""Collectives that were not found on all their ranks: how long they wait for other ranks is not known.

A replay lets each take as long as recorded. With a change, waiting in them is shorter or longer by at most as much as
the work of any recorded rank is. Ranks that were not recorded are taken to change as those do: if the slowest rank is
one of them, the wait for it changes by the same share as the work of recorded ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from dptune.whatif.gpu.graph import Kind
from dptune.whatif.gpu.program import Program

UNMATCHED = (
    "collectives were not matched on all ranks, so it is unknown how long ranks wait for each other after the change: "
    "only an upper bound of the saving is known"
)
_MOST = 0.1  # of the step: what waiting may differ by for a step to be predicted


def alone_ns(program: Program) -> Mapping[int, float]:
    """How long each rank's step is without these collectives; empty where there are none."""
    return _without(program) if program.places((Kind.WAIT,)) else {}


def apart_ns(before: Program, alone: Mapping[int, float], after: Program) -> tuple[float, float]:
    """How much shorter and longer a step may be with a change than the replay has it; `alone` is that of `before`."""
    if not alone:
        return 0.0, 0.0
    changed = _without(after)
    saved = [ns - changed[rank] for rank, ns in alone.items()]
    all_read = before.world_size <= len(alone)
    shares = [0.0 if all_read else (ns - changed[rank]) / ns for rank, ns in alone.items() if ns]
    predicted = before.step_ns() - after.step_ns()
    left = max(0.0, after.step_ns() - median(changed.values()))
    below = max(0.0, min(max(saved) - max(0.0, predicted), left), left * max(0.0, *shares))
    return below, max(0.0, min(0.0, predicted) - min(0.0, *saved), -left * min(0.0, *shares))


def unknown(below_ns: float, step_ns: float) -> str:
    """Why only a bound is known where a step may be so much shorter than predicted; empty where more is."""
    return UNMATCHED if below_ns > _MOST * step_ns else ""


def _without(program: Program) -> Mapping[int, float]:
    return program.by_rank_ns(program.columns.scaled((Kind.WAIT,), 0.0))

"""How far the steps of one process are from those of another, which no model of a single one predicts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median, stdev

from dptune.runfile.window import Window

_BLOCKS, _STEPS_OF_A_BLOCK = 10, 4
# How far medians of processes lie apart, of what those of blocks within one do: a machine is slower for seconds, so
# blocks are not independent either. Of 18 changes of bucket sizes predicted between recordings (three scripts on three
# wires, 100 steps each) 17 were inside with half of it, 15 with two fifths, 14 with what independent blocks would give.
_PROCESSES = 0.5
_SEEN = 4  # processes with the change whose median is predicted
_AS_SURE = 3  # processes that tell as much of how far they lie apart as the blocks of one do
_ODD = 3.0  # times what blocks tell: a process counts as no further off than that
_STUDENT_90 = (6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83)  # two-sided, 1 to 9 degrees of freedom


def unsure_ns(windows: Sequence[Window], own_ns: float, repeats_ns: Sequence[float] = ()) -> float:
    """How far the median step of a few further processes may be from that of the recorded ones: 90 %.

    The spread between processes is estimated from the processes that were timed and, counted as three more, from blocks
    of steps of the recorded one, whose median step is `own_ns`.
    """
    steps: int = min(window.steps for window in windows)
    count = min(_BLOCKS, max(2, steps // _STEPS_OF_A_BLOCK))
    borders = [steps * at // count for at in range(count + 1)]
    middles = [
        float(median(median(window.durations_ns[first:last]) for window in windows))
        for first, last in pairwise(borders)
    ]
    within: float = stdev(middles) * max(_PROCESSES, count**-0.5)
    processes = [own_ns, *repeats_ns]
    apart = [min(abs(process - median(processes)), _ODD * within) ** 2 for process in processes]
    sure = min(count - 1, _AS_SURE) if repeats_ns else count - 1
    degrees = sure + len(repeats_ns)
    spread = ((sum(apart) + sure * within**2) / degrees) ** 0.5
    return float(_STUDENT_90[min(degrees, len(_STUDENT_90)) - 1] * spread * (1 / len(processes) + 1 / _SEEN) ** 0.5)

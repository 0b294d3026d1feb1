"""Where a trace's steps come from: marks, else the optimizer, else what repeats.

`ProfilerStep` ranges are the truth where there are any. Of the other two the optimizer goes first, unless it gives
fewer steps than a run is judged by: it cannot tell the steps at the ends of a recording, and repetition can.
"""

from __future__ import annotations

from collections.abc import Sequence as Listed
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dptune.measure.device.operations import Operations
from dptune.measure.intervals import Ints
from dptune.measure.steps.optimizing import optimizer_steps
from dptune.measure.steps.period import LEAST
from dptune.measure.steps.repeating import repetition
from dptune.measure.steps.sequence import sequence
from dptune.measure.steps.windows import Step, host_steps
from dptune.measured import StepBasis
from dptune.trace.events import Trace

NO_LAUNCHES = "the calls that launched them were not recorded"
NO_STEPS = "no ProfilerStep marks, fewer than two optimizer steps"


@dataclass(frozen=True)
class Stepping:
    """The host's steps in order of time and what marks them; without any, `why`.

    `similarity`: how alike the steps are, 0 to 1; None where they are marked.
    """

    steps: list[Step]
    basis: StepBasis = "profiler_step"
    similarity: float | None = None
    why: str = ""


def stepping(trace: Trace, devices: Listed[Operations]) -> Stepping:
    """The steps of a trace. Those that carry no number are numbered from 0."""
    marked = host_steps(trace)
    if marked:
        return Stepping(marked)
    if not devices:
        return Stepping([], why=NO_STEPS)
    launched = sequence(trace.columns, devices)
    boundaries, likeness = optimizer_steps(trace.columns, launched)
    if len(boundaries) > LEAST:
        return Stepping(_numbered(boundaries), "optimizer", likeness)
    found = repetition(trace.columns, launched)
    if not isinstance(found, str):
        return Stepping(_numbered(found.boundaries_ns), "repeating", found.similarity)
    if len(boundaries) > 1:
        return Stepping(_numbered(boundaries), "optimizer", likeness)
    return Stepping([], why=f"{NO_STEPS}, and {found}")


def _numbered(boundaries: Ints) -> list[Step]:
    times = np.unique(boundaries).tolist()
    return [Step(number, start, end) for number, (start, end) in enumerate(pairwise(times))]

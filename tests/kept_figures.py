"""Figures of runs whose traces are kept (kept_traces.py), measured once for all commands in tests, of all processes.

Commands look `measure` up where they use it; tests that import it measure for themselves.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from functools import partial
from weakref import WeakKeyDictionary, ref

import dptune.measure
from dptune.measure.communication.links import Sweep
from dptune.measured import Measured
from dptune.trace.events import Trace
from dptune.trace.run import Run

from . import sharing
from .kept_traces import KeptTraces

Measure = Callable[[Run, Sweep | None, int | None, int | None], Measured]


class KeptFigures:
    """`measure`, which measures a run of kept traces once for each of what else it is given; callers get copies."""

    def __init__(self, measure: Measure, traces: KeptTraces) -> None:
        self._measure, self._traces = measure, traces
        self._kept: WeakKeyDictionary[Trace, list[tuple[bytes, list[ref[Trace]], Measured]]] = WeakKeyDictionary()

    def __call__(
        self, run: Run, sweep: Sweep | None = None, tokens: int | None = None, samples: int | None = None
    ) -> Measured:
        """As `dptune.measure.measure`."""
        lights = [rank.light for rank in run.ranks]
        names = [self._traces.name_of(light) for light in lights]
        if not lights or run.digested or None in names:
            return self._measure(run, sweep, tokens, samples)
        ranks = [(rank.rank, rank.source, rank.detailed_source, rank.read_detailed is None) for rank in run.ranks]
        recorded = run.record, run.facts, run.repeats, run.findings, run.rank_basis, run.sources
        given = pickle.dumps((ranks, recorded, sweep, tokens, samples))
        of_first = self._kept.setdefault(lights[0], [])
        for known, traces, measured in of_first:
            if known == given and all(trace() is light for trace, light in zip(traces, lights, strict=True)):
                return measured.model_copy(deep=True)
        name = f"figures {names} {hashlib.sha256(given).hexdigest()}"
        measured = sharing.once(name, partial(self._measure, run, sweep, tokens, samples))
        of_first.append((given, list(map(ref, lights)), measured.model_copy(deep=True)))
        return measured


def keep(traces: KeptTraces) -> None:
    """From now on, in this process."""
    own = vars(dptune.measure)
    if "measure" not in own:
        own["measure"] = KeptFigures(dptune.measure.measure, traces)

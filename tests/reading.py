"""What many tests read, read once by all processes that run tests together: nobody changes it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Generic, TypeVar

import dptune.measure
from dptune.advice import Report
from dptune.commands.shared.reading import report_of
from dptune.measured import Measured
from dptune.runfile.links import LINKS_JSON
from dptune.trace import load
from dptune.trace.run import Run
from dptune.whatif.run_model import RunModel

from . import sharing

SAMPLES = Path(__file__).parents[1] / "sample_traces"
Read = TypeVar("Read")


class _Once(Generic[Read]):
    """Reads each path once: in this process, and where others run tests beside it, in all of them."""

    def __init__(self, read: Callable[[Path], Read]) -> None:
        self._read = read
        self._known: dict[Path, Read] = {}

    def __call__(self, path: Path) -> Read:
        if path not in self._known:
            self._known[path] = sharing.once(self._name(path), functools.partial(self._read, path))
        return self._known[path]

    def begun(self, path: Path) -> bool:
        """Whether it is read already, or another process is reading it."""
        place = sharing.place(self._name(path))
        return path in self._known or (place is not None and place.exists())

    def _name(self, path: Path) -> str:
        return f"{self._read.__name__} {path}"


@_Once
def reported(path: Path) -> Report:
    """The report on a run, or on a trace."""
    return report_of([str(path)], jobs=1, cached=False)


@_Once
def measured(path: Path) -> Measured:
    """The figures of a trace, or of a folder of traces; those of the report on it, where that is there already.

    Commands measure none of them again, nor does this what they did: kept_figures.py.
    """
    linked = any((place / LINKS_JSON).exists() for place in (path, path.parent))  # of which a report says more
    return reported(path).measured if not linked and reported.begun(path) else dptune.measure.measure(load([path]))


@_Once
def loaded(path: Path) -> Run:
    """A run, or a trace, as it is read."""
    return load([path])


@_Once
def measured_without_facts(path: Path) -> Measured:
    """What the traces of a recorded run show by themselves."""
    return dptune.measure.measure(without_facts(load([path])))


@_Once
def modelled(path: Path) -> RunModel:
    """The model of a run's steps."""
    return RunModel.of(loaded(path), measured(path))


def without_facts(run: Run) -> Run:
    """The run as if only its traces had been recorded."""
    return replace(run, facts={}, record=None, repeats=[])


@functools.cache
def run_and_report_of(path: Path) -> tuple[Run, Report]:
    """A run, or a trace, and the report on it."""
    return loaded(path), reported(path)


def sample(name: str) -> tuple[Run, Report]:
    """A sample run, and the report on it."""
    return run_and_report_of(SAMPLES / name)

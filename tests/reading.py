"""What many tests read, read once by each process that runs tests: nobody changes it."""

from __future__ import annotations

import functools
from pathlib import Path

from dptune.advice import Report
from dptune.commands.shared.reading import run_and_report
from dptune.measure import measure
from dptune.measured import Measured
from dptune.trace import load
from dptune.trace.run import Run

SAMPLES = Path(__file__).parents[1] / "sample_traces"


@functools.cache
def sample(name: str) -> tuple[Run, Report]:
    """A sample run, and the report on it."""
    return run_and_report([str(SAMPLES / name)], cached=False)


@functools.cache
def measured(path: Path) -> Measured:
    """The figures of a trace, or of a folder of traces."""
    return measure(load([path]))

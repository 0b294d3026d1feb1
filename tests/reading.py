"""What many tests read, read once by all processes that run tests together: nobody changes it."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from dptune.advice import Report
from dptune.commands.shared.reading import report_of
from dptune.measure import measure
from dptune.measured import Measured
from dptune.trace import load
from dptune.trace.run import Run

SAMPLES = Path(__file__).parents[1] / "sample_traces"
SHARED = "TESTS_SHARED"  # the folder of what one process has read for the others; tests/conftest.py makes it
Read = TypeVar("Read")


def _once(read: Callable[[Path], Read]) -> Callable[[Path], Read]:
    """Read each path once: in this process, and where others run tests beside it, in all of them."""

    @functools.cache
    def known(path: Path) -> Read:
        folder = os.environ.get(SHARED)
        if folder is None:
            return read(path)
        name = hashlib.sha256(f"{read.__name__} {path}".encode()).hexdigest()
        with Path(folder, name).open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            if kept := file.read():
                return pickle.loads(kept)  # type: ignore[no-any-return]
            found = read(path)
            pickle.dump(found, file, pickle.HIGHEST_PROTOCOL)
        return found

    return known


@_once
def reported(path: Path) -> Report:
    """The report on a run, or on a trace."""
    return report_of([str(path)], jobs=1, cached=False)


@_once
def measured(path: Path) -> Measured:
    """The figures of a trace, or of a folder of traces."""
    return measure(load([path]))


@functools.cache
def run_and_report_of(path: Path) -> tuple[Run, Report]:
    """A run, or a trace, and the report on it."""
    return load([path]), reported(path)


def sample(name: str) -> tuple[Run, Report]:
    """A sample run, and the report on it."""
    return run_and_report_of(SAMPLES / name)

"""How long a step takes, without the profiler and in each recorded window."""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Report
from dptune.measured import StepTime
from dptune.present.amounts import Hole, milliseconds, number, several, shown
from dptune.present.lines import Line, heading, labelled

_WINDOWS = (
    ("unprofiled", "without the profiler", "unprofiled_median_ns", "unprofiled_steps"),
    ("lean", "traced lightly", "lean_median_ns", "lean_steps"),
    ("rich", "traced in detail", "rich_median_ns", "rich_steps"),
)


def steps(report: Report, width: int) -> Iterator[Line]:
    """The median step of each window; the one the report speaks of is marked."""
    step = report.measured.step
    yield from heading("How long a step takes (median over ranks)", width)
    for window, name, median, count in _WINDOWS:
        speaks = step.basis == ("unprofiled" if window == "unprofiled" else "traced" if window == "lean" else "")
        text = _window(step, median, getattr(step, count))
        if speaks and not text.startswith("not measured"):
            text += " (the step time of this report)"
        yield from labelled(name, text, width, column=22, indent="  ")


def _window(step: StepTime, median: str, count: int) -> str:
    time = shown(lambda: int(getattr(step, median)), lambda ns: milliseconds(ns / 1e6))
    if isinstance(time, Hole):
        return str(time)
    middle = shown(lambda: (step.unprofiled_q1_ns, step.unprofiled_q3_ns)) if median.startswith("unprofiled") else None
    half = ""
    if isinstance(middle, str):
        low, high = number(step.unprofiled_q1_ns / 1e6), number(step.unprofiled_q3_ns / 1e6)
        half = f", half of them between {low} and {high} ms"
    return f"{time}, {several(count, 'step')}{half}"

"""Step after step: how long each took, and which are outliers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from dptune.measure.steps.history import TimedStep, WindowHistory, WindowName
from dptune.present.amounts import milliseconds, ns_as_ms, several
from dptune.present.lines import Line, Role, heading, wrapped
from dptune.present.plots import Column, columns

LEAST_STEPS = 3
HIGHEST = 3  # times the median: a longer step is cut off there, so that the others differ visibly
_MOST_NAMED = 8
_ROLES: dict[WindowName, Role] = {"untraced": "good", "light": "note", "detailed": "code"}


def step_columns(
    windows: Sequence[WindowHistory],
    width: int,
    *,
    recorded: bool,
    rank: int | None = None,
    rows: int = 6,
    step_ns: float | None = None,
) -> Iterator[Line]:
    """A column for each step in order. `recorded`: by dptune, whose windows are named; `rank`: whose steps they are,
    the median over ranks where none is given; `step_ns`: the step time of the report, else the median is drawn.
    """
    steps = [(window.window, step) for window in windows for step in window.steps]
    if len(steps) < LEAST_STEPS:
        return
    whose = "median over ranks" if rank is None else f"rank {rank}"
    yield from heading(f"Time of each step ({whose})", width)
    level, top, cut = scale(windows, step_ns)
    firsts = {window.steps[0].number: f" {window.window}" if recorded else "" for window in windows if window.steps}
    drawn = [
        Column(
            step.length_ns,
            "error" if step.outlier else _ROLES[name],
            step.outlier,
            f"step {step.number}{firsts[step.number]}" if step.number in firsts else "",
        )
        for name, step in steps
    ]
    yield from columns(drawn, width, rows, top, level, lambda ns: milliseconds(ns / 1e6))
    basis = windows[0].window if recorded else "traced"
    which = "the step time of this report" if step_ns else f"the median of these {basis} steps"
    outliers = [step for _, step in steps if step.outlier]
    cut_off = f" Columns above {milliseconds(top / 1e6)} are cut off." if cut else ""
    words = f"Dashed: {which}, {milliseconds(level / 1e6)}.{cut_off}"
    if outliers:
        words = f"▲ {named_outliers(outliers)} {words}"
    yield from wrapped(words, width, "  ", role="dim")


def scale(windows: Sequence[WindowHistory], step_ns: float | None) -> tuple[float, float, bool]:
    """The step time of the report, else the median of the first window, the top of the axis, and whether a longer
    step is cut off there.
    """
    medians = [median(step.length_ns for step in window.steps) for window in windows if window.steps]
    highest = max(step.length_ns for window in windows for step in window.steps)
    top = max(1.05 * min(highest, HIGHEST * max(medians)), 1.0)
    return step_ns or medians[0], top, highest > top


def named_outliers(outliers: Sequence[TimedStep]) -> str:
    """`2 outliers: step 14 (310 ms on rank 1), step 20 (...)`; empty without any."""
    if not outliers:
        return ""
    longest = sorted(outliers, key=lambda step: -step.longest_ns)[:_MOST_NAMED]
    named = ", ".join(
        f"step {step.number} ({ns_as_ms(step.longest_ns)} ms{'' if step.rank is None else f' on rank {step.rank}'})"
        for step in sorted(longest, key=lambda step: step.number)
    )
    more = f" and {len(outliers) - len(longest)} more" if len(outliers) > len(longest) else ""
    return f"{several(len(outliers), 'outlier')}: {named}{more}."

"""The history of step times, with the outliers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dptune.measure.steps.history import TimedStep, WindowHistory
from dptune.present.amounts import milliseconds, ns_as_ms
from dptune.present.html import charts
from dptune.present.html.markup import Section, key, note
from dptune.present.html.style import COLORS
from dptune.present.sections.step_history import LEAST_STEPS, named_outliers, scale

_MOST_STEPS = 1_000
_COLORS = {"untraced": COLORS["compute"], "light": COLORS["memset"], "detailed": COLORS["copy"]}
_WORDS = {
    "untraced": "untraced: timed, not traced",
    "light": "light: traced without shapes and stacks",
    "detailed": "detailed: traced with shapes and stacks",
}
_OUTLIER = COLORS["communication"]


def history(windows: Sequence[WindowHistory], *, recorded: bool, step_ns: float | None = None) -> Iterator[Section]:
    """A bar for each step, in order. `recorded`: by dptune, whose windows are traced differently; `step_ns`: the step
    time of the report, else the median is drawn.
    """
    steps = [(window.window, step) for window in windows for step in window.steps]
    if len(steps) < LEAST_STEPS:
        return
    drawn = steps[:_MOST_STEPS]
    level, top, cut = scale(windows, step_ns)
    marks = [_bar(place, len(drawn), step, window, top) for place, (window, step) in enumerate(drawn)]
    marks.append(charts.curve([(0, level / top), (1, level / top)], "var(--ink)", charts.DASHED))
    ticks = [charts.Tick(tick.at, tick.words) for tick in charts.time_ticks(top)]
    picture = charts.plot(marks, _numbers(drawn), ticks, "Step time of each step")
    colors = [(_COLORS[window.window], _WORDS[window.window]) for window in windows] if recorded else []
    outliers = [step for _, step in steps if step.outlier]
    colors += [(_OUTLIER, "outlier")] if outliers else []
    basis = windows[0].window if recorded else "traced"
    which = "the step time of this report" if step_ns else f"the median {basis} step"
    notes = [
        named_outliers(outliers),
        f"Bars above {milliseconds(top / 1e6)} are cut off." if cut else "",
        f"The first {_MOST_STEPS:,} of {len(steps):,} steps." if len(steps) > len(drawn) else "",
        f"A bar per step: the median over ranks. Dashed: {which}, {milliseconds(level / 1e6)}.",
    ]
    yield Section("steps", "Step time history", "Step times", f"{picture}{key(colors)}{''.join(map(note, notes))}")


def _bar(place: int, count: int, step: TimedStep, window: str, top: float) -> str:
    left, wide = charts.SCALE * place / count, charts.SCALE / count * 0.9
    high = charts.SCALE * min(step.length_ns / top, 1)
    color = _OUTLIER if step.outlier else _COLORS[window]
    where = f'x="{left:.2f}" y="{charts.SCALE - high:.1f}" width="{wide:.2f}" height="{high:.1f}"'
    return f'<rect {where} fill="{color}"><title>step {step.number}: {ns_as_ms(step.length_ns)} ms</title></rect>'


def _numbers(drawn: Sequence[tuple[str, TimedStep]]) -> list[charts.Tick]:
    """The numbers of five steps or so."""
    every = max(1, -(-len(drawn) // 5))
    return [
        charts.Tick(
            (place + 0.5) / len(drawn), f"step {drawn[place][1].number}" if not place else str(drawn[place][1].number)
        )
        for place in range(0, len(drawn), every)
    ]

"""One step of the latest rank above the same step of a usual one, on one time axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dptune.measure.lanes import SELF_TIME, Idle, Lane, StepLanes
from dptune.measured import short_name
from dptune.measured.naming import cut
from dptune.present.amounts import milliseconds, ns_as_ms
from dptune.present.html import charts
from dptune.present.html.markup import Section, key, note, paragraph, text
from dptune.present.html.style import COLORS
from dptune.present.step_classes import kind_name

_LEGEND = {"communication": "communication, including waiting for late ranks"}  # a lane does not split it
_MOST_LANES = 10  # of a rank: those in which most runs


def timeline(steps: Sequence[StepLanes], *, named: bool = True) -> Iterator[Section]:
    """The lanes of each step; nothing where there are none. `named`: whether the report names a straggler."""
    steps = [step for step in steps if step.lanes]
    if not steps:
        return
    whole_ns = max(step.start_ns + step.length_ns for step in steps) or 1
    parts = [paragraph(_words(steps))]
    for step in steps:
        if len(steps) > 1:
            parts.append(f"<h3>{text(_title(step, _kind(step, named)))}</h3>")
        lanes = _busiest(step.lanes)
        strips = ((lane.label, charts.strip(_boxes(step, lane, whole_ns), _name(step, lane))) for lane in lanes)
        parts.append(charts.rows(strips, charts.time_ticks(whole_ns)))
        if step.idle:
            parts.append(note(_idle_words(step.idle, step.start_ns)))
        if len(lanes) < len(step.lanes):
            parts.append(note(f"The {len(lanes)} busiest of {len(step.lanes)} streams and threads."))
    kinds = dict.fromkeys(piece.kind for step in steps for lane in step.lanes for piece in lane.pieces)
    parts.append(key((COLORS.get(kind, COLORS["idle"]), _LEGEND.get(kind, kind_name(kind))) for kind in kinds))
    yield Section("timeline", f"Timeline of step {steps[0].number}", "Timeline", "".join(parts))


def _words(steps: Sequence[StepLanes]) -> str:
    if len(steps) == 1:
        return f"The median step of rank {steps[0].rank} as traced: {milliseconds(steps[0].length_ns / 1e6)}."
    late, usual = steps
    lag = milliseconds(late.lag_ns / 1e6)
    return f"Rank {late.rank} arrives {lag} late in this step; below it is rank {usual.rank} in the same step."


def _idle_words(idle: Idle, begin_ns: int) -> str:
    """`begin_ns`: the start of its step on the axis that the lanes share, as in the tooltips."""
    inside = f" (inside {cut(idle.inside)})" if idle.inside else ""
    return f"Nothing runs for {ns_as_ms(idle.length_ns)} ms, from {ns_as_ms(begin_ns + idle.start_ns)} ms{inside}."


def _kind(step: StepLanes, named: bool) -> str:
    return "usual" if not step.late else "straggler" if named else "latest"


def _title(step: StepLanes, kind: str) -> str:
    length = milliseconds(step.length_ns / 1e6)
    lag = f"{milliseconds(step.lag_ns / 1e6)} late" if step.lag_ns else "not late"
    return f"Rank {step.rank} ({kind}): {length}, {lag}"


def _busiest(lanes: Sequence[Lane]) -> list[Lane]:
    """The lanes in which most runs, in their order; the script is always among them."""
    by_time = sorted(lanes[1:], key=lambda lane: -sum(piece.length_ns for piece in lane.pieces))
    kept = {id(lane) for lane in [*lanes[:1], *by_time[: _MOST_LANES - 1]]}
    return [lane for lane in lanes if id(lane) in kept]


def _name(step: StepLanes, lane: Lane) -> str:
    return f"Rank {step.rank}, step {step.number}, {lane.label}"


def _boxes(step: StepLanes, lane: Lane, whole_ns: int) -> Iterator[charts.Box]:
    for piece in lane.pieces:
        many = f" and {piece.count - 1:,} more" if piece.count > 1 else ""
        name = short_name(piece.name) or SELF_TIME
        tooltip = f"{name}{many}: {ns_as_ms(piece.length_ns)} ms, from {ns_as_ms(step.start_ns + piece.start_ns)} ms"
        start = (step.start_ns + piece.start_ns) / whole_ns
        yield charts.Box(start, piece.length_ns / whole_ns, COLORS.get(piece.kind, COLORS["idle"]), tooltip)

"""The parts of the recorded steps of one rank whose units are sharded by fully_shard, on a CPU.

The script's own thread computes all of a step and waits for each collective of a unit, so a step is a sequence of
compute and collectives. What the thread does from the end of one collective to the start of the next is compute.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from dptune.measure.communication.calls import Call, calls
from dptune.measure.host.enclosing import NOWHERE, Ranges
from dptune.measure.intervals import Intervals, Ints
from dptune.measure.shard_units.events import calls_of_units
from dptune.measure.steps.windows import Step
from dptune.measure.views import RankView
from dptune.measured import Missing
from dptune.trace.columns import Columns
from dptune.trace.kernels import RANGE_CATEGORIES
from dptune.whatif.cpu.flat_calls import HOOKS, flat_calls
from dptune.whatif.cpu.model import Pass, RankStep
from dptune.whatif.cpu.operator_calls import OperatorCalls, operator_calls
from dptune.whatif.cpu.timeline import EVALUATE, LOADER, borders
from dptune.whatif.cpu.units import Kind, UnitCall

_KINDS: dict[str, Kind] = {"all_gather": "gather", "reduce_scatter": "reduce"}
_FORWARD = ("FSDP::root_pre_forward", "FullyShardedDataParallel._root_pre_forward")
_FINISH = ("FSDP::root_post_backward_callback",)
_HOOKS = ("FSDP::all_gather", "FSDP::post_backward_reduce")  # issue collectives; their copies and views are in them
_ANY_HOOK = ("FSDP::", "FullyShardedDataParallel._")
_COPY_OUT = "FSDP::all_gather_copy_out"
_MOST_BESIDE = 0.2  # of the time in collectives, that lies after the hook: none where they block


@dataclass(frozen=True)
class UnitTimeline:
    """The steps of one rank as recorded, and the names of its units in the order of forward passes.

    `calls` is what calling operators takes. `others` are the collectives of a step that no unit issues, `others_ns`
    what they take: both are medians, and part of what is computed. `hooks_ns` is what hooks of modules take in the
    forward and in the backward part of a pass beside collectives and what is around those, medians; also compute.
    `flights` are the collectives of units in the steps, in order of time.
    """

    steps: tuple[RankStep, ...]
    names: tuple[str, ...]
    calls: OperatorCalls = field(default_factory=OperatorCalls)
    others: float = 0.0
    others_ns: float = 0.0
    hooks_ns: tuple[float, float] = (0.0, 0.0)
    flights: tuple[Flight, ...] = ()


@dataclass(frozen=True)
class Flight:
    """A collective of a unit: when it was in flight, and what its hook and its copies took besides.

    `between_ns`: of a reduction, the part in which HSDP all-reduces the shards between groups of ranks.
    """

    kind: Kind
    unit: str
    start_ns: int
    end_ns: int
    around_ns: int
    between_ns: int = 0

    @property
    def within_ns(self) -> int:
        """What the collective of the ranks that shard the unit takes."""
        return self.end_ns - self.start_ns - self.between_ns

    def all_reduced(self, call: Call, unit: str) -> Flight:
        """With the all-reduce of its shards that follows it; raises Missing for one that follows no reduction."""
        if self.kind != "reduce" or self.between_ns or unit != self.unit:
            raise Missing("shards are all-reduced without a reduce-scatter before")
        end_ns = call.start_ns + call.dur_ns
        between_ns = end_ns - self.end_ns
        return replace(self, end_ns=end_ns, between_ns=between_ns, around_ns=max(0, self.around_ns - between_ns))


@dataclass(frozen=True)
class _Span:
    """One pass in times of the trace: where it follows what came before, where its backward starts, where it ends."""

    follows_ns: int
    began_ns: int
    ended_ns: int


class _Rows(NamedTuple):
    """Rows that show where passes start and end."""

    evaluated: Ints
    forward: Ints
    finishing: Ints


def unit_timeline(view: RankView, sizes: Mapping[Kind, Mapping[str, float]], order: Sequence[str] = ()) -> UnitTimeline:
    """The parts of a rank's steps. `sizes`: bytes of each unit, by its path, as its collectives of each kind send it.

    `order`: units of FullyShardedDataParallel in the order of forward passes; empty for those of fully_shard.
    Raises Missing where the trace does not show the parts, or a unit is of no known size.
    """
    if view.no_steps:
        raise Missing(view.no_steps)
    flights, others = _flights(view, order)
    if any(flight.unit not in sizes[flight.kind] for flight in flights):
        raise Missing("the trace names a unit whose size was not recorded")
    columns = view.columns
    blocked, elsewhere = (
        Intervals.union(*np.array(bounds, dtype=np.int64).reshape(-1, 2).T)
        for bounds in ([(flight.start_ns, flight.end_ns) for flight in flights], others)
    )
    loader = columns.rows(RANGE_CATEGORIES, lambda name: name.startswith(LOADER))
    loading = Intervals.union(columns.ts_ns[loader], columns.ends(loader))
    evaluated, forward, finishing = (
        columns.rows(RANGE_CATEGORIES, lambda name, start=start: name.startswith(start))  # type: ignore[misc]
        for start in ((EVALUATE,), _FORWARD, _FINISH)
    )
    rows = _Rows(evaluated, forward, finishing)
    found = {step.number: spans for step in view.steps if (spans := _spans(columns, rows, step))}
    steps = [step for step in view.steps if step.number in found]
    if not steps:
        raise Missing("no recorded step has a backward pass")
    names = tuple(dict.fromkeys(flight.unit for flight in flights if flight.kind == "gather"))
    places = {name: place for place, name in enumerate(names)}
    if any(flight.unit not in places for flight in flights):
        raise Missing("some units reduce gradients without gathering parameters")

    def pass_(span: _Span) -> Pass:
        def computed(time_ns: int) -> float:
            inside = np.array([span.follows_ns]), np.array([time_ns])
            return float(time_ns - span.follows_ns - (blocked | loading).lengths(*inside)[0])

        sent = [flight for flight in flights if span.follows_ns <= flight.start_ns < span.ended_ns]
        forward_ns = computed(span.began_ns)
        return Pass(
            loader_ns=float(loading.within(span.follows_ns, span.began_ns).total_ns),
            forward_ns=forward_ns,
            backward_ns=computed(span.ended_ns) - forward_ns,
            sent_ns=float(elsewhere.within(span.follows_ns, span.began_ns).total_ns),
            calls=tuple(
                _call(
                    flight,
                    places[flight.unit],
                    sizes[flight.kind][flight.unit],
                    computed(flight.start_ns),
                    forward_ns,
                    span,
                )
                for flight in sent
            ),
        )

    ranges = columns.rows(RANGE_CATEGORIES, lambda name: name.startswith(_ANY_HOOK))
    hooks = Intervals.union(columns.ts_ns[ranges], columns.ends(ranges)) - blocked
    operators = columns.rows({"cpu_op"})
    if len(evaluated):
        operators = operators[columns.thread[operators] == columns.thread[evaluated[0]]]
    passes = [[(span.follows_ns, span.ended_ns) for span in found[step.number]] for step in steps]
    inside = [elsewhere.within(step.start_ns, step.end_ns) for step in steps]
    return UnitTimeline(
        tuple(
            RankStep(tuple(map(pass_, found[step.number])), step.end_ns - found[step.number][-1].ended_ns)
            for step in steps
        ),
        names,
        replace(
            operator_calls(columns, operators, loading | hooks, blocked | loading | elsewhere | hooks, passes),
            hooks_ns=float(np.median([sum(hooks.within(*span).total_ns for span in spans) for spans in passes])),
        ),
        float(np.median([len(spans) for spans in inside])),
        float(np.median([spans.total_ns for spans in inside])),
        _hooks_ns(hooks, flights, [span for step in steps for span in found[step.number]]),
        tuple(flights),
    )


def _hooks_ns(hooks: Intervals, flights: Sequence[Flight], spans: Sequence[_Span]) -> tuple[float, float]:
    def beside(start_ns: int, end_ns: int) -> int:
        around_ns = sum(flight.around_ns for flight in flights if start_ns <= flight.start_ns < end_ns)
        return max(0, hooks.within(start_ns, end_ns).total_ns - around_ns)

    forward = [beside(span.follows_ns, span.began_ns) for span in spans]
    backward = [beside(span.began_ns, span.ended_ns) for span in spans]
    return float(np.median(forward)), float(np.median(backward))


def _call(flight: Flight, place: int, message_bytes: float, at_ns: float, forward_ns: float, span: _Span) -> UnitCall:
    if flight.start_ns < span.began_ns:
        return UnitCall(at_ns, flight.kind, "forward", place, message_bytes, float(flight.around_ns))
    return UnitCall(at_ns - forward_ns, flight.kind, "backward", place, message_bytes, float(flight.around_ns))


def _spans(columns: Columns, rows: _Rows, step: Step) -> list[_Span]:
    """The passes of a step, in order."""
    evaluated, forward, finishing = (_within(columns, some, step.start_ns, step.end_ns) for some in rows)
    if not len(evaluated):
        return []
    starts = borders(columns.ts_ns[evaluated], columns.ts_ns[forward])
    found, follows = [], step.start_ns
    for first, last in zip(starts, [*starts[1:], len(evaluated)], strict=True):
        began = int(columns.ts_ns[evaluated[first]])
        following = int(columns.ts_ns[evaluated[last]]) if last < len(evaluated) else step.end_ns
        closing = _within(columns, finishing, began, following)
        ended = max([int(columns.ends(evaluated[first:last]).max()), *columns.ends(closing).tolist()])
        found.append(_Span(follows, began, ended))
        follows = ended
    return found


def _within(columns: Columns, rows: Ints, start_ns: int, end_ns: int) -> Ints:
    """Rows that start in [start, end), in order of time."""
    ts = columns.ts_ns[rows]
    rows = rows[(ts >= start_ns) & (ts < end_ns)]
    return rows[np.argsort(columns.ts_ns[rows], kind="stable")]


def _flights(view: RankView, order: Sequence[str]) -> tuple[list[Flight], list[tuple[int, int]]]:
    """The collectives of units in the steps, in order of time, and start and end of those of others."""
    columns, (device, *_) = view.columns, view.devices
    by_row = {call.row: call for call in calls(view, device)}
    sent = flat_calls(view, device, by_row, order) if order else calls_of_units(view, device, by_row)
    if not sent:
        kind = "FullyShardedDataParallel" if order else "fully_shard, which name its units"
        raise Missing(f"the trace has no ranges of {kind}")
    if order:
        hooks = columns.rows(RANGE_CATEGORIES, HOOKS.match)
    else:
        hooks = columns.rows(RANGE_CATEGORIES, lambda name: name.startswith(_HOOKS) and not name.startswith(_COPY_OUT))
    copies = _copies(columns)
    threads = columns.thread[hooks]
    thread = threads[0] if len(threads) else 0
    enclosing = Ranges.of_rows(columns, hooks).at(
        np.full(len(sent), thread), np.array([each.time_ns for each in sent], dtype=np.int64)
    )
    inside = Counter(enclosing.tolist())
    flights: list[Flight] = []
    beside_ns = 0
    for each, hook in zip(sent, enclosing.tolist(), strict=True):
        start_ns, end_ns = each.call.start_ns, each.call.start_ns + each.call.dur_ns
        if each.call.kind not in _KINDS:
            if not flights:
                raise Missing("shards are all-reduced without a reduce-scatter before")
            flights[-1] = flights[-1].all_reduced(each.call, each.unit)
            continue
        around_ns = _copied_ns(copies, each.unit, start_ns) if each.call.kind == "all_gather" else 0
        if hook != NOWHERE:
            hook_ns, hook_end_ns = int(columns.dur_ns[hooks[hook]]), int(columns.end_ns[hooks[hook]])
            around_ns += max(0, hook_ns // inside[hook] - each.call.dur_ns)
            beside_ns += max(0, end_ns - hook_end_ns)
        flights.append(Flight(_KINDS[each.call.kind], each.unit, start_ns, end_ns, around_ns))
    if beside_ns > _MOST_BESIDE * sum(flight.end_ns - flight.start_ns for flight in flights):
        raise Missing("all-gathers overlap compute (set_unshard_async_op); the step model covers blocking ones only")
    of_units = {each.call.row for each in sent}
    others = [(call.start_ns, call.start_ns + call.dur_ns) for row, call in by_row.items() if row not in of_units]
    return flights, others


def _copies(columns: Columns) -> Mapping[str, tuple[Ints, Ints]]:
    """Starts and durations of copies out of gathered buffers, by unit."""
    rows: defaultdict[str, list[int]] = defaultdict(list)
    for row in columns.rows(RANGE_CATEGORIES, lambda name: name.startswith(_COPY_OUT)).tolist():
        rows[columns.name(row).removeprefix(_COPY_OUT).strip(" ").removeprefix("(").removesuffix(")")].append(row)
    ordered = {unit: sorted(found, key=lambda row: columns.ts_ns[row]) for unit, found in rows.items()}
    return {unit: (columns.ts_ns[found], columns.dur_ns[found]) for unit, found in ordered.items()}


def _copied_ns(copies: Mapping[str, tuple[Ints, Ints]], unit: str, gathered_ns: int) -> int:
    """What the copy takes that follows a gather of a unit; 0 where none does."""
    starts, durations = copies.get(unit, (np.array([]), np.array([])))
    at = int(np.searchsorted(starts, gathered_ns))
    return int(durations[at]) if at < len(starts) else 0

"""What a trace shows of units of FullyShardedDataParallel (FSDP1), whose ranges name no unit.

A unit is known by its place among the units that a forward pass runs. `_pre_forward` to `_post_forward` is the forward
pass of one; only a unit with parameters has a range of prefetching in its hooks. Backward passes run units in the
reverse order of `_post_forward`. Units that return the same tensor, as a unit whose last module is another one does,
have their hooks in one operator of autograd, in the order of `_post_forward`. Of the units that run, the one whose
forward pass started last reduces its gradients next. A gather in a range of prefetching is of the unit that ended its
forward pass before the one of the hook.
Source: torch 2.13, distributed/fsdp/_runtime_utils.py and _exec_order_utils.py.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dptune.measure.communication.calls import Call
from dptune.measure.communication.purposes import issuers
from dptune.measure.host.enclosing import NOWHERE, Ranges
from dptune.measure.host.launches import UNLAUNCHED
from dptune.measure.intervals import Ints
from dptune.measure.shard_units.events import UnitCall, UnitEvent, UnitEvents, step_of
from dptune.measure.steps.windows import OUTSIDE
from dptune.measure.views import DeviceView, RankView
from dptune.measured import Missing, Pass
from dptune.trace.columns import Columns
from dptune.trace.kernels import RANGE_CATEGORIES

_RANGE = re.compile(
    r"FullyShardedDataParallel\._(pre_forward|post_forward|pre_backward_hook|post_backward_hook(?:_reshard_only)?"
    r"|(?:pre_forward|pre_backward|post_backward)_prefetch)$"
)
_AHEAD, _BACKWARD = "_prefetch", "pre_backward_hook"
_AUTOGRAD = "autograd::engine::evaluate_function"
_GATHER = "all_gather"
_RATIOS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the widths of two dtypes
_NO_NAMES = "ranges of FullyShardedDataParallel do not name units, and"
NO_HANDLES = f"{_NO_NAMES} in this version of torch they do not show which units have parameters"
NO_TASKS = f"{_NO_NAMES} the trace has no autograd operators"
RECOMPUTED = f"{_NO_NAMES} backward passes rerun the forward passes of units"
CUT = f"{_NO_NAMES} the trace starts or ends within a pass"
SEVERAL_ROOTS = f"{_NO_NAMES} it wraps several models"
NOT_ALL = f"{_NO_NAMES} not every unit of a forward pass runs exactly once in the backward pass"
UNEVEN = f"{_NO_NAMES} forward passes run different units, or one unit twice"
OTHER_ORDER = f"{_NO_NAMES} message sizes show that the order of units varies"


class _Hook(NamedTuple):
    """A range of a hook. `own`: whether its unit has parameters.

    `task`: the operator of autograd that it is in, NOWHERE in none; `together`: how many backward hooks that one runs,
    `until_ns`: until when.
    """

    at: int  # place among the rows
    name: str
    start_ns: int
    end_ns: int
    own: bool
    task: int
    together: int
    until_ns: int


class _Mark(NamedTuple):
    """What a collective issued in a range belongs to: the pass, and the unit by its place in forward passes."""

    of: _Pass
    direction: Pass
    unit: int | None
    behind: bool


class _Sent(NamedTuple):
    """A collective of a unit, with its place on the device and when the host issued it."""

    of: _Pass
    unit: int
    mark: _Mark
    call: Call
    place: int
    time_ns: int


@dataclass(eq=False)
class _Pass:
    """A forward pass of the whole model, and the backward pass after it."""

    units: int = 0
    running: list[int | None] = field(default_factory=list)  # innermost last; None: without parameters
    ended: list[int] = field(default_factory=list)  # in the order of the ends of forward passes
    waiting: list[int] = field(default_factory=list)  # the next one to run backward last
    due: list[int] = field(default_factory=list)  # those of the same operator of autograd
    open: set[int] = field(default_factory=set)
    begun: int = 0  # in the backward pass
    reduced: int = 0
    starts: list[tuple[int, int, Pass, int]] = field(default_factory=list)  # start, end of the hook, pass, unit
    frees: list[tuple[int, Pass, int]] = field(default_factory=list)

    def before(self, unit: int) -> int | None:
        """The unit whose forward pass ended just before that of another: it runs backward next."""
        place = self.ended.index(unit)
        return self.ended[place - 1] if place else None

    @property
    def whole(self) -> bool:
        """Whether all of it was seen: forward, and backward, if at all, each unit once."""
        return not self.running and not self.open and {self.begun, self.reduced} <= {0, self.units}


def flat_events(
    view: RankView, device: DeviceView, calls: Mapping[int, Call], names: Sequence[str]
) -> UnitEvents | None:
    """Units and their collectives, in the order of issuing; None of a trace without them. `names`: in forward order.

    `calls`: by the row of the operation. Without `names` a unit is called by its place, `#1` the first. Raises Missing
    where units cannot be identified.
    """
    columns, operations = view.columns, device.operations
    rows = columns.rows(RANGE_CATEGORIES, _RANGE.match)
    if not len(rows) or not calls:
        return None
    rows = rows[np.lexsort((-columns.dur_ns[rows], columns.ts_ns[rows]))]
    (places,) = np.nonzero(np.isin(operations.rows, np.fromiter(calls, dtype=np.int64, count=len(calls))))
    by = issuers(view, device)[places]
    known = (by != UNLAUNCHED) & (device.launched_in[places] != OUTSIDE)
    places, by = places[known], by[known]
    inside = Ranges.of_rows(columns, rows).at(columns.thread[by], columns.ts_ns[by])
    if not (inside != NOWHERE).any():
        return None
    marks: dict[int, _Mark] = {}
    passes = list(_passes(columns, rows, marks))
    found: list[_Sent] = []
    lost = False
    for at in np.argsort(columns.ts_ns[by], kind="stable").tolist():
        if inside[at] == NOWHERE:
            continue
        mark, call = marks.get(int(inside[at])), calls[int(operations.rows[places[at]])]
        if mark is None or mark.unit is None:
            lost = True
            continue
        found.append(_Sent(mark.of, mark.unit, mark, call, int(places[at]), int(columns.ts_ns[by[at]])))
    passes = _of_steps(view, passes, found)
    titles = _titles(passes, found, names)
    if lost:
        raise Missing(CUT)
    _check_sizes(found)
    sent = [
        UnitCall(
            each.place,
            each.call,
            each.time_ns,
            int(device.launched_in[each.place]),
            each.mark.direction,
            titles[each.unit],
            each.mark.behind,
        )
        for each in found
    ]
    begun = [(start, end, direction, titles[unit]) for each in passes for start, end, direction, unit in each.starts]
    ended = [(at, direction, titles[unit]) for each in passes for at, direction, unit in each.frees]
    return UnitEvents(
        _in_steps(view, [(start, direction, unit) for start, _, direction, unit in begun]),
        _in_steps(view, _freed(ended, begun, sent)),
        sent,
        numbered=not names,
    )


def _passes(columns: Columns, rows: Ints, marks: dict[int, _Mark]) -> Iterator[_Pass]:
    """The passes in order of time; what each range's collectives belong to goes to `marks`, by place among the rows."""
    current: _Pass | None = None
    last: tuple[_Hook, int] | None = None
    for hook in _hooks(columns, rows):
        if hook.name.endswith(_AHEAD):
            if current is not None and last is not None and hook.start_ns < last[0].end_ns:
                marks[hook.at] = _ahead(current, *last)
            continue
        if hook.name.endswith("_forward") and hook.task != NOWHERE:
            if hook.own:
                raise Missing(RECOMPUTED)
            continue
        if hook.name == "pre_forward" and (current is None or not current.running):
            if current is not None:
                yield current
            current = _Pass()
        if current is None:
            continue
        unit = _run(current, hook)
        direction: Pass = "forward" if hook.name.endswith("_forward") else "backward"
        marks[hook.at] = _Mark(current, direction, unit, behind=False)
        last = None if unit is None else (hook, unit)
    if current is not None:
        yield current


def _hooks(columns: Columns, rows: Ints) -> Iterator[_Hook]:
    """The ranges in order of time."""
    names = [columns.name(row).rpartition("._")[2] for row in rows.tolist()]
    ahead = np.array([name.endswith(_AHEAD) for name in names])
    if not ahead.any():
        raise Missing(NO_HANDLES)
    thread, start_ns, end_ns = columns.thread[rows], columns.ts_ns[rows], columns.ends(rows)
    (hooks,) = np.nonzero(~ahead)
    holding = Ranges.of_rows(columns, rows[hooks]).around(thread[ahead], start_ns[ahead], end_ns[ahead])
    own = set(hooks[holding[holding != NOWHERE]].tolist())
    autograd = Ranges.of_rows(columns, columns.rows({"cpu_op"}, lambda name: name.startswith(_AUTOGRAD)))
    tasks = autograd.at(thread, start_ns).tolist()
    together: defaultdict[int, list[int]] = defaultdict(list)
    for at, task in enumerate(tasks):
        if at in own and names[at] == _BACKWARD:
            together[task].append(at)
    if NOWHERE in together:
        raise Missing(NO_TASKS)
    for at, (name, task) in enumerate(zip(names, tasks, strict=True)):
        hooks_of_task = together.get(task, [])
        until_ns = int(end_ns[hooks_of_task].max()) if hooks_of_task else int(end_ns[at])
        yield _Hook(at, name, int(start_ns[at]), int(end_ns[at]), at in own, task, len(hooks_of_task), until_ns)


def _run(current: _Pass, hook: _Hook) -> int | None:
    """The unit of a hook, which its pass then has run so far; None where it has no parameters, or is not known."""
    if hook.name == "pre_forward":
        unit = current.units if hook.own else None
        current.running.append(unit)
        if unit is not None:
            current.units += 1
            current.starts.append((hook.start_ns, hook.end_ns, "forward", unit))
        return unit
    if hook.name == "post_forward":
        unit = current.running.pop() if current.running else None
        if unit is not None:
            current.ended.append(unit)
            current.waiting = current.ended[:]
            current.frees.append((hook.start_ns, "forward", unit))
        return unit
    if hook.name == _BACKWARD:
        if not hook.own:
            return None
        if not current.due:
            current.due = current.waiting[-hook.together :]
            del current.waiting[-hook.together :]
            current.starts += [(hook.start_ns, hook.until_ns, "backward", unit) for unit in current.due]
        if not current.due:
            return None
        unit = current.due.pop(0)
        current.begun += 1
        current.open.add(unit)
        return unit
    if not current.open:
        return None
    unit = max(current.open)
    current.open.remove(unit)
    current.reduced += 1
    current.frees.append((hook.start_ns, "backward", unit))
    return unit


def _ahead(current: _Pass, hook: _Hook, unit: int) -> _Mark:
    """What is gathered ahead in a hook of a unit: the next one in forward order, or in that of backward passes."""
    if hook.name == "pre_forward":
        return _Mark(current, "forward", unit + 1, behind=False)
    return _Mark(current, "backward", current.before(unit), behind=hook.name.startswith("post_"))


def _of_steps(view: RankView, passes: Sequence[_Pass], found: Sequence[_Sent]) -> list[_Pass]:
    """The passes that start in a step, or send in one."""
    first_ns = np.array([each.starts[0][0] if each.starts else -1 for each in passes], dtype=np.int64)
    sending = {each.of for each in found}
    steps = step_of(first_ns, view.steps).tolist()
    return [each for each, step in zip(passes, steps, strict=True) if step != OUTSIDE or each in sending]


def _titles(passes: Sequence[_Pass], found: Sequence[_Sent], names: Sequence[str]) -> list[str]:
    """What the units are called, in forward order; raises Missing where passes do not run the same units."""
    if not passes:
        raise Missing(CUT)
    counts = {each.units for each in passes}
    if len(counts) > 1 or (names and counts != {len(names)}):
        raise Missing(UNEVEN)
    if not all(each.whole for each in passes):
        raise Missing(NOT_ALL)
    count = counts.pop()
    if any(each.unit >= count for each in found):
        raise Missing(UNEVEN)
    return list(names) or [f"#{place + 1}" for place in range(count)]


def _check_sizes(found: Sequence[_Sent]) -> None:
    """Raise Missing where a unit's collectives of one pass are not as large as its all-gather."""
    gathered: dict[tuple[_Pass, int], int] = {}
    for each in found:
        size = each.call.message_bytes
        if size and each.call.kind == _GATHER and gathered.setdefault((each.of, each.unit), size) != size:
            raise Missing(OTHER_ORDER)
    for each in found:
        size, whole = each.call.message_bytes, gathered.get((each.of, each.unit))
        if each.call.kind == "reduce_scatter" and size and whole and size / whole not in _RATIOS:
            raise Missing(OTHER_ORDER)


def _freed(
    ended: Sequence[tuple[int, Pass, str]],
    begun: Sequence[tuple[int, int, Pass, str]],
    sent: Sequence[UnitCall],
) -> list[tuple[int, Pass, str]]:
    """The ends of passes after which a unit is gathered before it runs again: after others it is kept."""
    gathered: defaultdict[str, list[int]] = defaultdict(list)
    for each in sent:
        if each.call.kind == _GATHER:
            gathered[each.unit].append(each.time_ns)
    hooks: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for start, end, _, unit in sorted(begun):
        hooks[unit].append((start, end))

    def given_up(at_ns: int, unit: str) -> bool:
        following = bisect_right(hooks[unit], at_ns, key=lambda hook: hook[0])
        if following == len(hooks[unit]):
            return True
        until_ns = hooks[unit][following][1]
        first = bisect_right(gathered[unit], at_ns)
        return first < len(gathered[unit]) and gathered[unit][first] < until_ns

    return [(at_ns, direction, unit) for at_ns, direction, unit in ended if given_up(at_ns, unit)]


def _in_steps(view: RankView, events: Sequence[tuple[int, Pass, str]]) -> list[UnitEvent]:
    """The events inside steps, in order of time; those of one time as they are given."""
    steps = step_of(np.array([at_ns for at_ns, _, _ in events], dtype=np.int64), view.steps).tolist()
    found = (
        UnitEvent(at_ns, step, direction, unit)
        for (at_ns, direction, unit), step in zip(events, steps, strict=True)
        if step != OUTSIDE
    )
    return sorted(found, key=lambda event: event.time_ns)

"""Slices of tensors whose backward pass fills a gradient of the whole tensor for each slice, by function of the script.

Read from Python's stacks, input sizes and autograd's sequence numbers in the detailed window. `x[i]` and `x[a:b]` each
create a node of the autograd graph that makes zeros as large as `x`, copies the gradient of the slice into them, and
adds them to those of the other slices. A node counts for the function that took the slice, also inside of a backward
pass, as `vmap` does where it has no rule for an operator.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from dptune.measure.host.by_function import longest_first, taken_ns, whole_step_ns
from dptune.measure.host.callers import PYTHON_CATEGORIES, innermost
from dptune.measure.host.enclosing import NOWHERE
from dptune.measure.host.frames import FRAME, is_users
from dptune.measure.host.function_names import function_names
from dptune.measure.host.outermost import calls
from dptune.measure.host.recorded_operators import NODE, RecordedOperators
from dptune.measure.intervals import NOTHING, Intervals
from dptune.measure.views import RankView
from dptune.measured import SliceGradients

LEAST_SLICES = 16  # of one size in a step: as many calls as make a loop
_SLICES = ("aten::select", "aten::slice", "aten::narrow")
_NODE_NAMES = tuple(NODE + name for name in ("SelectBackward", "SliceBackward"))
_MOST = 20_000  # slices that are looked at


def slice_gradients(views: Sequence[RankView], untraced_ns: Mapping[int, float]) -> list[SliceGradients]:
    """The functions whose slices take most, each on the rank where they do.

    `untraced_ns` is the step time of ranks without the profiler, where it is known.
    """
    return longest_first(_of_rank(view, untraced_ns.get(view.rank)) for view in views)


def _of_rank(view: RankView, untraced_ns: float | None) -> Iterator[SliceGradients]:
    recorded = RecordedOperators.of(view)
    if recorded is None:
        return
    columns = view.columns
    step_ns = whole_step_ns(view, untraced_ns)
    nodes = _nodes_of_slices(recorded)
    slices = np.array(sorted(nodes)[:_MOST], dtype=np.int64)
    functions = innermost(columns, columns.rows(PYTHON_CATEGORIES, is_users), slices)
    known = calls(view, slices.tolist())
    names = function_names(view)
    groups: dict[tuple[str, tuple[int, ...]], list[int]] = defaultdict(list)
    frames: dict[str, int] = {}
    for row, function in zip(slices.tolist(), functions.tolist(), strict=True):
        if function != NOWHERE and row in known and known[row].shapes and known[row].shapes[0]:
            name = names.of(columns.name(function))
            groups[name, tuple(known[row].shapes[0])].append(row)
            frames.setdefault(name, function)
    for (name, size), rows in groups.items():
        match = FRAME.match(columns.name(frames[name]))
        if match is None or len(rows) < LEAST_SLICES * recorded.steps:
            continue
        called, running = np.array(rows, dtype=np.int64), np.array([nodes[row] for row in rows], dtype=np.int64)
        slicing, filling = (Intervals.union(columns.ts_ns[each], columns.ends(each)) for each in (called, running))
        cost_ns, backward_ns = (taken_ns(view, each, recorded.steps) for each in (slicing, filling))
        through = _torch_frame(view, frames[name], rows[0])
        saved = slicing | filling
        if through:
            around = innermost(columns, columns.rows(PYTHON_CATEGORIES, through.__eq__), called)
            around = np.unique(around[around != NOWHERE])
            calling = Intervals.union(columns.ts_ns[around], columns.ends(around))
            saved |= calling | (recorded.backward_of(around) or NOTHING)
        yield SliceGradients(
            name=match["name"],
            at=f"{match['file']}:{match['line']}",
            size=[*size],
            through=frame["name"] if (frame := FRAME.match(through)) is not None else "",
            calls=len(rows) / recorded.steps,
            rank=view.rank,
            cost_ns=cost_ns,
            backward_ns=backward_ns,
            share=min(1.0, backward_ns / step_ns),
            saved_share=min(1.0, taken_ns(view, saved, recorded.steps) / step_ns),
        )


def _nodes_of_slices(recorded: RecordedOperators) -> dict[int, int]:
    """Operators that took a slice, each with the run of its node: that of the same number which follows it."""
    columns, found, open_slices = recorded.columns, dict[int, int](), dict[int, int]()
    is_slice = columns.named(_SLICES.__contains__, recorded.rows)
    is_node = columns.named(lambda name: name.startswith(_NODE_NAMES), recorded.rows)
    chosen = (is_slice | is_node) & (recorded.numbers >= 0)
    rows, numbers, nodes = recorded.rows[chosen], recorded.numbers[chosen], is_node[chosen]
    order = np.argsort(columns.ts_ns[rows], kind="stable")
    for row, number, node in zip(rows[order].tolist(), numbers[order].tolist(), nodes[order].tolist(), strict=True):
        if not node:
            open_slices[number] = row
        elif number in open_slices:
            found[open_slices.pop(number)] = row
    return found


def _torch_frame(view: RankView, function: int, row: int) -> str:
    """The frame of torch that the script's function calls around an operator; empty where it takes the slice itself.

    `function` and `row` are of the same thread; the function may have run several times.
    """
    columns = view.columns
    rows = columns.rows(PYTHON_CATEGORIES, lambda name: name.startswith("torch/") or name == columns.name(function))
    moment = columns.ts_ns[row]
    around = rows[
        (columns.thread[rows] == columns.thread[row]) & (columns.ts_ns[rows] <= moment) & (columns.ends(rows) >= moment)
    ]
    names = [columns.name(at) for at in around[np.argsort(columns.ts_ns[around], kind="stable")].tolist()]
    inside = names[len(names) - names[::-1].index(columns.name(function)) :] if columns.name(function) in names else []
    return inside[0] if inside else ""

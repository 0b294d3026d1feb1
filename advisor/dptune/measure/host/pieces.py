"""What the script of a rank did at each moment: its time in pieces, by the innermost function, range, operator or call.

The threads are those that mark the steps (else the one with most operators) and autograd's own. Where the latter is
inside a range the script only waits for it. Time in which the script waits for the device or for other ranks is in no
piece: it is no work, and how long it takes depends on the others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from dptune.measure.device.operations import ENCLOSING
from dptune.measure.device.phases import autograd_threads
from dptune.measure.host.callers import PYTHON_CATEGORIES
from dptune.measure.host.enclosing import NOWHERE, Ranges
from dptune.measure.host.frames import is_users
from dptune.measure.intervals import Intervals, Ints
from dptune.measure.views import RankView
from dptune.trace.by_name import once_per_name
from dptune.trace.columns import Columns
from dptune.trace.kernels import LAUNCH_CATEGORIES, OPERATOR_CATEGORIES, RANGE_CATEGORIES, STEP_NAME

_LINE = re.compile(r"\.py\(\d+\): ")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+(?=>)")


@dataclass(frozen=True)
class Doing:
    """What a piece of time is of, alike on all ranks.

    `function` is the innermost function of the user around it, `leaf` the innermost operator, call or function of
    another around that; `before` what begins next, where neither runs: then nothing but Python does. "" for none.
    """

    function: str
    leaf: str
    before: str


@dataclass(frozen=True, eq=False)
class Pieces:
    """Disjoint pieces of the script's time, in order: of each what it is (an index of `kinds`), its start, its row in
    the columns (NOWHERE outside of all), its step (an index of the view's) and how long the script worked in it, ns.
    """

    kinds: list[Doing]
    kind: Ints
    start_ns: Ints
    row: Ints
    step: Ints
    work_ns: Ints


def pieces(view: RankView, waiting: Intervals) -> Pieces:
    """The pieces of all steps of a rank; `waiting` is when its device waits for other ranks."""
    columns = view.columns
    mains, passes = _threads(view)
    rows = columns.rows(RANGE_CATEGORIES | LAUNCH_CATEGORIES | PYTHON_CATEGORIES)
    rows = rows[np.isin(columns.thread[rows], np.concatenate((mains, passes)))]
    going_back = Intervals.union(*_spans(columns, rows[np.isin(columns.thread[rows], passes)]))
    parts = []
    for thread in np.concatenate((mains, passes)).tolist():
        thread_rows = rows[columns.thread[rows] == thread]
        active = _everything(view) - going_back if thread in mains else going_back
        parts.append(_of_thread(view, thread_rows, thread, active))
    nothing = np.zeros(0, dtype=np.int64)
    parts.append((nothing, nothing, nothing, nothing))
    start, end, row, after = (np.concatenate(each) for each in zip(*parts, strict=True))
    order = np.argsort(start, kind="stable")
    start, end, row, after = start[order], end[order], row[order], after[order]
    away = view.host.held | waiting
    begins = np.array([step.start_ns for step in view.steps], dtype=np.int64)
    kinds, kind = _kinds(columns, rows, row, start, after)
    step = np.searchsorted(begins, start, side="right") - 1
    return Pieces(kinds, kind, start, row, step, end - start - away.lengths(start, end))


def _threads(view: RankView) -> tuple[Ints, Ints]:
    """The script's thread and those of autograd."""
    columns = view.columns
    passes = autograd_threads(columns)
    marks = columns.rows(RANGE_CATEGORIES, STEP_NAME.match)
    if len(marks):
        mains = np.unique(columns.thread[marks])
    else:
        threads, count = np.unique(columns.thread[columns.rows(OPERATOR_CATEGORIES)], return_counts=True)
        count = np.where(np.isin(threads, passes), 0, count)
        mains = threads[[int(count.argmax())]] if len(threads) else threads
    return mains[:1], np.setdiff1d(passes, mains)


def _everything(view: RankView) -> Intervals:
    return Intervals.union(
        np.array([step.start_ns for step in view.steps], dtype=np.int64),
        np.array([step.end_ns for step in view.steps], dtype=np.int64),
    )


def _spans(columns: Columns, rows: Ints) -> tuple[Ints, Ints]:
    return columns.ts_ns[rows], columns.ends(rows)


def _of_thread(view: RankView, rows: Ints, thread: int, active: Intervals) -> tuple[Ints, Ints, Ints, Ints]:
    """Start and end of the pieces of one thread while it is the active one, the innermost row, and what begins next."""
    columns = view.columns
    bounds = np.concatenate([[step.start_ns, step.end_ns] for step in view.steps]).astype(np.int64)
    cuts = np.unique(np.concatenate((*_spans(columns, rows), bounds, active.start_ns, active.end_ns)))
    start, end = cuts[:-1], cuts[1:]
    inside = (active.lengths(start, end) > 0) & (_everything(view).lengths(start, end) > 0)
    start, end = start[inside], end[inside]
    found = Ranges.of_rows(columns, rows).at(np.full(len(start), thread), start)
    row = np.where(found == NOWHERE, NOWHERE, np.append(rows, NOWHERE)[found])
    begun = rows[np.argsort(columns.ts_ns[rows], kind="stable")]
    place = np.searchsorted(columns.ts_ns[begun], end)
    return start, end, row, np.append(begun, NOWHERE)[np.minimum(place, len(begun))]


def _kinds(columns: Columns, rows: Ints, row: Ints, start: Ints, after: Ints) -> tuple[list[Doing], Ints]:
    """What each piece is of."""
    users = rows[columns.of_category(PYTHON_CATEGORIES, rows)]
    users = users[columns.named(is_users, users)]
    thread = np.where(row == NOWHERE, -1, columns.thread[row])
    around = Ranges.of_rows(columns, users).at(thread, start)
    function = np.where(around == NOWHERE, NOWHERE, np.append(users, NOWHERE)[around])
    name = np.append(columns.name_id.astype(np.int64), NOWHERE)
    codes = np.stack((name[function], name[row], name[after]), axis=1)
    open_ended = columns.named(_is_open, np.maximum(row, 0)) | columns.of_category(
        {"user_annotation"}, np.maximum(row, 0)
    )
    codes[~(open_ended | (row == NOWHERE)) | (function != NOWHERE), 2] = NOWHERE
    names = len(columns.names) + 1  # one for none
    keys = (codes + 1) @ np.array([names * names, names, 1], dtype=np.int64)
    _, first, kind = np.unique(keys, return_index=True, return_inverse=True)
    distinct = codes[first]
    found: dict[Doing, int] = {}
    number = []
    for function_id, leaf_id, after_id in distinct.tolist():
        function_name, leaf, before = (
            alike(columns.names[each]) if each >= 0 else "" for each in (function_id, leaf_id, after_id)
        )
        leaf = "" if leaf == function_name else leaf
        number.append(found.setdefault(Doing(function_name, leaf, before), len(found)))
    return list(found), np.array(number, dtype=np.int64)[kind.reshape(-1)]


def _is_open(name: str) -> bool:
    return ENCLOSING.match(name) is not None


@once_per_name
def alike(name: str) -> str:
    """A name as all ranks and steps have it: steps without their number, functions without their line, which is that
    of where they stood for those that ran as recording began, and methods of built-in objects without the address.
    """
    return "" if STEP_NAME.match(name) else _ADDRESS.sub("", _LINE.sub(".py: ", name))

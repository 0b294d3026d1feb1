"""What the host of one rank spends more time on than those of the others, in the same steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dptune.measure.device.phases import bounds
from dptune.measure.host.attribution import is_scripts
from dptune.measure.host.callers import PYTHON_CATEGORIES
from dptune.measure.host.enclosing import NOWHERE, Ranges
from dptune.measure.host.frames import FRAME
from dptune.measure.host.pieces import Doing, Pieces, alike, pieces
from dptune.measure.intervals import NOTHING, Intervals
from dptune.measure.views import RankView
from dptune.measured import DifferenceKind, LagDifference
from dptune.trace.columns import NONE
from dptune.trace.kernels import COLLECTIVE_PREFIXES, LAUNCH_CATEGORIES, OPERATOR_CATEGORIES, Work

Floats = NDArray[np.float64]
LEAST_SHARE = 0.1  # of the lag, from which on something is named
_MOST_OF_IT = 0.6  # of a difference, from which on a part of it is what differs
_SLOWER = 1.05  # times as long as on the others, from which on operators that all ranks run are slower there
NO_LINE = "not a function of the user's code"
NO_RANGE = "not inside a range named by the script"
NO_DETAIL = "nothing inside it accounts for most of the difference"


@dataclass(frozen=True, eq=False)
class Side:
    """One rank: its pieces, and by what they are of the work in each of the compared steps, ns.

    `away` is when the script waits for the device or for other ranks, which is in no piece.
    """

    view: RankView
    away: Intervals
    pieces: Pieces
    work: dict[Doing, Floats]
    steps: list[int]  # numbers of the compared steps


def longer(views: Mapping[int, RankView], rank: int, lag_ns: Mapping[int, float]) -> list[LagDifference]:
    """What takes the host of `rank` longer, the largest first; `lag_ns` is by step how late the rank was."""
    numbers = [{step.number for step in view.steps} for view in views.values()]
    steps = sorted(set(lag_ns).intersection(*numbers))
    total_ns = sum(lag_ns[step] for step in steps)
    if len(views) < 2 or total_ns <= 0:
        return []
    sides = {number: _side(view, steps) for number, view in views.items()}
    late, others = sides[rank], [side for number, side in sides.items() if number != rank]
    more = {what: work - _usual(others, what) for what, work in late.work.items()}
    groups: dict[Doing, list[Doing]] = defaultdict(list)
    for what in late.work:
        groups[Doing(what.function, "", "") if what.function else what].append(what)
    lag = np.array([lag_ns[step] for step in steps])
    grew = {group: _sum([more[what] for what in parts], steps) for group, parts in groups.items()}
    named = [group for group, each in grew.items() if _lasting(each, lag)]
    rest = [what for group, parts in groups.items() if group not in named for what in parts]
    spread = _spread(late, others, more, rest, lag)
    parts = [_positive(grew[group]) for group in named] + ([] if spread is None else [_positive(spread[1])])
    scale = lag / np.maximum(np.maximum(lag, _sum(parts, steps)), 1.0)
    found = [
        _figures(late, others, group, groups[group], more, float((part * scale).sum()) / total_ns)
        for group, part in zip(named, parts, strict=False)
    ]
    if spread is not None:
        found.append(spread[0].model_copy(update={"share": float((parts[-1] * scale).sum()) / total_ns}))
    return sorted(found, key=lambda difference: -difference.share)


def _side(view: RankView, steps: list[int]) -> Side:
    waits = [
        device.operations.time[Work.COMMUNICATION] - device.operations.time[Work.COMPUTE]
        for device in view.devices
        if device.operations.on_cpu
    ]
    waiting = waits[0] if waits else NOTHING
    found = pieces(view, waiting)
    place = np.array([steps.index(s.number) if s.number in steps else -1 for s in view.steps], dtype=np.int64)[
        found.step
    ]
    work = np.zeros((len(found.kinds), len(steps)))
    np.add.at(work, (found.kind[place >= 0], place[place >= 0]), found.work_ns[place >= 0])
    return Side(view, view.host.held | waiting, found, dict(zip(found.kinds, work, strict=True)), steps)


def _usual(others: Sequence[Side], what: Doing) -> Floats:
    """By step the median of the others."""
    nothing = np.zeros(len(others[0].steps))
    return np.asarray(np.median([side.work.get(what, nothing) for side in others], axis=0), dtype=np.float64)


def _sum(values: Sequence[Floats], steps: Sequence[int]) -> Floats:
    return np.asarray(np.sum([np.zeros(len(steps)), *values], axis=0), dtype=np.float64)


def _lasting(grew: Floats, lag: Floats) -> bool:
    """Whether something explains enough of the lag, in all and in the median step: not once, in one long step."""
    explains = np.minimum(_positive(grew), lag)
    return bool(
        _positive(grew).sum() >= LEAST_SHARE * lag.sum()
        and np.median(explains[lag > 0]) >= LEAST_SHARE * np.median(lag[lag > 0])
    )


def _positive(values: Floats) -> Floats:
    return np.maximum(values, 0.0)


def _spread(
    late: Side, others: Sequence[Side], more: Mapping[Doing, Floats], rest: Sequence[Doing], lag: Floats
) -> tuple[LagDifference, Floats] | None:
    """What is slower in small parts: operators that all ranks run; None where they are not, or it explains little."""
    shared = [what for what in rest if what.leaf and not what.before and all(what in side.work for side in others)]
    if not shared:
        return None
    grew = _sum([more[what] for what in shared], late.steps)
    took = _sum([late.work[what] for what in shared], late.steps)
    usual = took - grew
    if not _lasting(grew, lag) or took.sum() < _SLOWER * usual.sum():
        return None
    figures = LagDifference(
        kind="host",
        name=_mostly(late, others, more, shared, float(grew.sum())),
        rank_ns=round(float(np.median(took))),
        others_ns=round(float(np.median(usual))),
        share=0.0,
        missing={
            "at": NO_LINE,
            "within": NO_RANGE,
            **dict.fromkeys(("detail", "detail_rank_ns", "detail_others_ns"), NO_DETAIL),
        },
    )
    return figures, grew


def _mostly(
    late: Side, others: Sequence[Side], more: Mapping[Doing, Floats], shared: Sequence[Doing], grew_ns: float
) -> str:
    """The operator that explains most of the difference, and takes none of the others as long; empty without one."""
    most = max(shared, key=lambda what: float(more[what].sum()))
    slowest_ns = max(float(side.work[most].sum()) for side in others)
    holds_most = float(more[most].sum()) >= _MOST_OF_IT * grew_ns
    if not holds_most or most.leaf.startswith(COLLECTIVE_PREFIXES) or slowest_ns >= float(late.work[most].sum()):
        return ""
    return most.leaf


def _figures(
    late: Side, others: Sequence[Side], group: Doing, parts: Sequence[Doing], more: Mapping[Doing, Floats], share: float
) -> LagDifference:
    longest = _longest(late, parts)
    row = late.pieces.row[longest]
    label = group.function or group.leaf
    frame = FRAME.match(_name_of(late.view, label)) if group.function else None
    rank_ns, others_ns = _times(late, others, parts, label)
    detail = max(parts, key=lambda what: float(more[what].sum()))
    inside = detail.leaf if group.function else f"before {detail.before}" if detail.before and group.leaf else ""
    grew = float(sum(more[what].sum() for what in parts))
    if float(more[detail].sum()) < _MOST_OF_IT * grew:
        inside = ""
    inside_ns = _times(late, others, [detail], "")
    known: dict[str, object] = {
        "at": f"{frame['file']}:{frame['line']}" if frame else None,
        "within": _range_around(late, longest, label),
        "detail": inside or None,
        "detail_rank_ns": inside_ns[0] if inside else None,
        "detail_others_ns": inside_ns[1] if inside else None,
    }
    reasons = {"at": NO_LINE, "within": NO_RANGE}
    return LagDifference(
        kind="work" if group.function and _is_work(late.view, detail) else _kind(late.view, group, int(row)),
        name=frame["name"] if frame else label or group.before or "the script",
        rank_ns=rank_ns,
        others_ns=others_ns,
        share=share,
        **known,
        missing={name: reasons.get(name, NO_DETAIL) for name, value in known.items() if value is None},
    )


def _times(late: Side, others: Sequence[Side], parts: Sequence[Doing], label: str) -> tuple[int, int]:
    """What the parts take a step on the late rank and on the others; all of the range or function that holds them where
    that is where the difference shows, without waiting for the device or other ranks in it.
    """
    nothing = np.zeros(len(late.steps))
    worked = [_sum([side.work.get(what, nothing) for what in parts], late.steps) for side in (late, *others)]
    rank_ns, others_ns = float(np.median(worked[0])), float(np.median(np.median(worked[1:], axis=1)))
    if label:
        whole = [float(np.median(_inclusive(side, label))) for side in (late, *others)]
        if whole[0] - float(np.median(whole[1:])) >= _MOST_OF_IT * (rank_ns - others_ns):
            rank_ns, others_ns = whole[0], float(np.median(whole[1:]))
    return round(rank_ns), round(others_ns)


def _inclusive(side: Side, label: str) -> Floats:
    """By step the time in events of this name, without waiting for the device or other ranks."""
    columns = side.view.columns
    rows = columns.rows(named=lambda name: alike(name) == label)
    rows = rows[columns.stream[rows] == NONE]
    steps = [step for step in side.view.steps if step.number in side.steps]
    spans = Intervals.union(columns.ts_ns[rows], columns.ends(rows)) - side.away
    return np.asarray(spans.lengths(*bounds(steps)), dtype=np.float64)


def _longest(side: Side, parts: Sequence[Doing]) -> int:
    """The longest piece of any of the parts."""
    kinds = [number for number, what in enumerate(side.pieces.kinds) if what in parts]
    return int(np.where(np.isin(side.pieces.kind, kinds), side.pieces.work_ns, -1).argmax())


def _name_of(view: RankView, label: str) -> str:
    """A name as the trace has it, with the line."""
    return next((name for name in view.columns.names if alike(name) == label), label)


def _range_around(side: Side, piece: int, label: str) -> str | None:
    """The innermost range that the script names around a piece, but for the one that is named itself."""
    columns, row = side.view.columns, int(side.pieces.row[piece])
    if row == NOWHERE:
        return None
    rows = columns.rows({"user_annotation"}, lambda name: is_scripts(name) and name != label)
    found = Ranges.of_rows(columns, rows).at(columns.thread[[row]], side.pieces.start_ns[[piece]])
    return None if found[0] == NOWHERE else columns.name(int(rows[found[0]]))


def _is_work(view: RankView, what: Doing) -> bool:
    """Whether it is an operator."""
    columns = view.columns
    return len(columns.rows(OPERATOR_CATEGORIES, lambda name: name == what.leaf)) > 0


def _kind(view: RankView, group: Doing, row: int) -> DifferenceKind:
    if group.function:
        return "function"
    if row == NOWHERE or not group.leaf:
        return "gap"
    category = view.columns.categories[view.columns.category_id[row]]
    if category in LAUNCH_CATEGORIES:
        return "call"
    if category in PYTHON_CATEGORIES:
        return "function"
    return "range" if category == "user_annotation" else "operator"

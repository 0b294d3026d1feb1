"""Rows of the timeline: the time of a rank, a lane of a stream or of the script, a level of nested ranges; as cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from typing import NamedTuple

import numpy as np
from rich.style import Style
from rich.text import Text

from dptune.measure.host_ranges import Nested, ThreadRanges
from dptune.measure.lanes import Lane, Piece
from dptune.measure.rank_time import Shares
from dptune.present.columns import by_column, columns_of, cut_to, padded
from dptune.present.step_classes import PARTS, Part
from dptune.present.tui.pane import hue, style_of
from dptune.present.visible import visible

LABEL = 16  # columns of a row's name
_BLANK = " "
_EDGE = "▏"  # starts an event, so that neighbours are distinct
PARTLY = "▏"  # something ran in the cell, and it was idle for longer
_LEAST_SHARE = 0.05  # of a cell of a rank's time: less is not drawn in an idle cell
_MOST_LEVELS = 24
_NEARLY_ALL = 0.9  # of what is drawn


class Sign(NamedTuple):
    """How a kind of work is drawn."""

    sign: str
    style: str


def _of_part(name: str) -> Sign:
    part = next(part for part in PARTS if part.name == name)
    return Sign(part.block, style_of(part.role))


SIGNS = {
    "compute": _of_part("compute"),
    "communication": _of_part("exposed comm"),
    "copy": _of_part("copies"),
    "memset": _of_part("copies"),
    "loader": _of_part("input"),
    "backward": Sign("b", hue("cyan")),
    "optimizer": Sign("o", hue("blue")),
}
_NESTED_STYLES = {"range": "cyan", "function": "magenta", "operator": "blue", "call": "yellow"}
_NO_SIGN = Sign(_BLANK, "")


@dataclass(frozen=True, eq=False)
class Row:
    """A line of the timeline: one sign for each cell, made when it is first drawn.

    `ranks` are those that it is of: several where they are folded. It draws `lane`, the one of `number` of its rank, or
    a `level` of nested events; of neither, the time of its ranks.
    """

    label: str
    ranks: tuple[int, ...]
    make: Callable[[], list[Sign]]
    late: bool = False
    lane: Lane | None = None
    number: int = -1
    level: tuple[Nested, ...] = ()

    def draws(self, other: Row) -> bool:
        """Whether it is the row of the same thing."""
        return (self.ranks, self.number, self.level) == (other.ranks, other.number, other.level)

    @cached_property
    def cells(self) -> list[Sign]:
        """What each cell shows."""
        return self.make()


def painted_row(row: Row, column: int, chosen: bool, lines: int = 1, between: int = 0) -> Iterator[Text]:
    """The row on some lines, with its name on the first, and blank lines below it; the cursor at a column, reversed
    where the row is the chosen one. Nested events, which have their names in them, are on one line.
    """
    if row.level:
        lines, between = 1, between + lines - 1
    mark = ">" if chosen else "▶" if row.late else " "
    name = f"{mark}{padded(cut_to(visible(row.label), LABEL - 2), LABEL - 1)}"
    style = "bold" if chosen else hue("red") if row.late else ""
    for number in range(lines):
        yield Text(name if not number else _BLANK * LABEL, style).append_text(_painted(row.cells, column, chosen))
    blank = [_NO_SIGN] * len(row.cells)
    for _ in range(between):
        yield Text(_BLANK * LABEL).append_text(_painted(blank, column, chosen=False))


def _painted(cells: Sequence[Sign], column: int, chosen: bool) -> Text:
    text = Text()
    for style, group in groupby(range(len(cells)), lambda at: (cells[at].style, at == column)):
        drawn = "".join(cells[at].sign for at in group)
        if style[1]:
            shown = "│" if drawn == _BLANK else drawn
            text.append(shown, Style.parse(style[0]) + Style(reverse=True) if chosen else style[0] or "dim")
        else:
            text.append(drawn, style[0])
    return text


def parts_of(shares: dict[str, Shares]) -> list[tuple[Part, Shares]]:
    """The shares of each part of the first screen."""
    return [(part, sum((shares[name] for name in part.classes), start=0 * shares[part.classes[0]])) for part in PARTS]


def time_cells(shares: dict[str, Shares]) -> list[Sign]:
    """What the largest share of each cell is; where that is idle time, a thin bar of what else ran in the cell. Nothing
    outside the recording.
    """
    parts = parts_of(shares)
    most = np.argmax([of for _, of in parts], axis=0).tolist()
    busiest = np.argmax([of * (part.name != "idle") for part, of in parts], axis=0).tolist()
    found = []
    for at, (first, second) in enumerate(zip(most, busiest, strict=True)):
        part, busy = parts[first][0], parts[second][0]
        if parts[first][1][at] <= 0:
            found.append(_NO_SIGN)
        elif part.name == "idle" and parts[second][1][at] >= _LEAST_SHARE:
            found.append(Sign(PARTLY, style_of(busy.role)))
        else:
            found.append(Sign(part.block, style_of(part.role)))
    return found


def lane_row(lane: Lane, number: int, rank: int, length_ns: int, columns: int) -> Row:
    """A stream, threads that communicate, or the phases of the script."""
    return Row(
        lane.label,
        (rank,),
        lambda: lane_cells(lane, length_ns, columns),
        lane=lane,
        number=number,
    )


def level_rows(thread: ThreadRanges, rank: int, window: tuple[int, int], columns: int) -> Iterator[Row]:
    """The nested events of a thread, a row for each level. Of the outer levels on which one event holds nearly all
    that is drawn, only the innermost.
    """
    begin, end = window
    depth = max((event.depth for event in thread.events), default=-1)
    levels = [tuple(event for event in thread.events if event.depth == at) for at in range(depth + 1)]
    while len(levels) > 1 and _holds(levels[0], begin, end) and _holds(levels[1], begin, end):
        levels.pop(0)
    for number, level in enumerate(levels[:_MOST_LEVELS]):
        label = thread.label if not number else f"{' ' * min(number, 4)}· level {number + 1}"
        yield Row(label, (rank,), partial(level_cells, level, begin, end, columns), level=level)


def _holds(level: Sequence[Nested], begin: int, end: int) -> bool:
    longest = max(min(event.end_ns, end) - max(event.start_ns, begin) for event in level)
    return longest >= _NEARLY_ALL * (end - begin)


def level_cells(level: Sequence[Nested], begin: int, end: int, columns: int) -> list[Sign]:
    """Each event from its first cell to its last, its name inside as far as it fits."""
    cells = [_NO_SIGN] * columns
    per_cell = (end - begin) / columns
    for event in level:
        first = max(int((event.start_ns - begin) / per_cell), 0)
        last = min(int((event.end_ns - begin - 1) / per_cell), columns - 1)
        style = hue(f"{_NESTED_STYLES[event.kind]} reverse")
        room = last - first
        name = visible(event.name)
        words = (name if columns_of(name) <= room else f"{cut_to(name, room - 1)}…") if room > 1 else ""
        for at, sign in enumerate(by_column(f"{_EDGE}{padded(words, room)}"), first):
            cells[at] = Sign(sign, style)
    return cells


def lane_cells(lane: Lane, length_ns: int, columns: int) -> list[Sign]:
    """What each cell shows: the kind that ran longest in it, as a thin bar where the cell was idle for longer."""
    per_cell = length_ns / columns
    ran: list[dict[str, float]] = [{} for _ in range(columns)]
    for piece in lane.pieces:
        first = max(int(piece.start_ns / per_cell), 0)
        last = min(int((piece.start_ns + piece.length_ns) / per_cell), columns - 1)
        for cell in range(first, last + 1):
            common = common_ns(piece, cell * per_cell, (cell + 1) * per_cell) * piece.busy_share
            ran[cell][piece.kind] = ran[cell].get(piece.kind, 0.0) + max(common, 0.0)
    return [_lane_cell(kinds, per_cell) for kinds in ran]


def _lane_cell(kinds: dict[str, float], cell_ns: float) -> Sign:
    kind = max(kinds, key=lambda kind: kinds[kind], default="")
    if not kinds.get(kind):
        return _NO_SIGN
    sign = SIGNS.get(kind, _NO_SIGN)
    return sign if kinds[kind] >= cell_ns - sum(kinds.values()) else Sign(PARTLY, sign.style)


def common_ns(piece: Piece, low: float, high: float) -> float:
    """How much of a piece lies between two moments; negative where none does."""
    return min(piece.start_ns + piece.length_ns, high) - max(piece.start_ns, low)


def seen_rows(count: int, chosen: int, room: int) -> tuple[int, int]:
    """From which row to which there is room for, the chosen one in the middle where not all are seen."""
    if room < 1 or count <= room:
        return 0, count
    first = min(max(chosen - room // 2, 0), count - room)
    return first, first + room

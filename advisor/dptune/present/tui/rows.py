"""Rows of the timeline: the time of a rank, a lane of a stream or of the script, a level of nested ranges; as cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from typing import NamedTuple

from rich.style import Style
from rich.text import Text

from dptune.measure.lanes import Lane, Piece
from dptune.measure.nested import Nested, ThreadRanges
from dptune.measure.rank_time import Shares
from dptune.present.step_classes import PARTS, Part
from dptune.present.tui.pane import hue, style_of
from dptune.present.visible import visible

LABEL = 16  # columns of a row's name
_BLANK = " "
_EDGE = "▏"  # starts an event, so that neighbours are distinct
_LEAST_SHARE = 0.1  # of a cell that is not idle: less is not seen beside the idle time
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


def painted_row(row: Row, column: int, chosen: bool) -> Text:
    """The row with its name; the cursor at a column, reversed where the row is the chosen one."""
    mark = ">" if chosen else "▶" if row.late else " "
    text = Text(
        f"{mark}{visible(row.label)[: LABEL - 2]:<{LABEL - 1}}", "bold" if chosen else hue("red") if row.late else ""
    )
    cells = row.cells
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
    """What most of each cell is, but for idle time beside something that runs; nothing outside the recording."""
    parts = parts_of(shares)
    found = []
    for at in range(len(parts[0][1])):
        part, share = max(
            ((part, float(of[at]) * (_LEAST_SHARE if part.name == "idle" else 1.0)) for part, of in parts),
            key=lambda each: each[1],
        )
        found.append(Sign(part.block, style_of(part.role)) if share > 0 else _NO_SIGN)
    return found


def lane_row(lane: Lane, number: int, rank: int, length_ns: int, columns: int) -> Row:
    """A stream, threads that communicate, or the phases of the script."""
    return Row(
        lane.label,
        (rank,),
        lambda: [SIGNS.get(kind, _NO_SIGN) for kind in cell_kinds(lane, length_ns, columns)],
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
        words = (name if len(name) <= room else f"{name[: max(room - 1, 0)]}…"[:room]) if room > 1 else ""
        for at, sign in enumerate(f"{_EDGE}{words:<{max(room, 0)}}", first):
            cells[at] = Sign(sign, style)
    return cells


def cell_kinds(lane: Lane, length_ns: int, columns: int) -> list[str]:
    """What each cell shows: the kind that most of it is; nothing where most of it is idle and no piece begins there."""
    per_cell = length_ns / columns
    best, kinds = [0.0] * columns, [""] * columns
    for piece in lane.pieces:
        first = max(int(piece.start_ns / per_cell), 0)
        last = min(int((piece.start_ns + piece.length_ns) / per_cell), columns - 1)
        for cell in range(first, last + 1):
            common = common_ns(piece, cell * per_cell, (cell + 1) * per_cell)
            if common > best[cell]:
                best[cell], kinds[cell] = common, piece.kind
    return kinds


def common_ns(piece: Piece, low: float, high: float) -> float:
    """How much of a piece lies between two moments; negative where none does."""
    return min(piece.start_ns + piece.length_ns, high) - max(piece.start_ns, low)


def seen_rows(count: int, chosen: int, room: int) -> tuple[int, int]:
    """From which row to which there is room for, the chosen one in the middle where not all are seen."""
    if room < 1 or count <= room:
        return 0, count
    first = min(max(chosen - room // 2, 0), count - room)
    return first, first + room

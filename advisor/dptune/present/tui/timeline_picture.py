"""The timeline as text: its heading, the axis, the rows, what the signs stand for, and what is under the cursor."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator

from rich.text import Text

from dptune.present.amounts import ns_as_ms, several
from dptune.present.lines import Line, labelled, wrapped
from dptune.present.step_classes import PARTS, kind_name
from dptune.present.tui import under_cursor
from dptune.present.tui.pane import style_of
from dptune.present.tui.rows import LABEL, PARTLY, SIGNS, Row, painted_row, seen_rows
from dptune.present.tui.scene import Window
from dptune.present.tui.timeline_view import Mode, TimelineView

_SHORT = {"exposed comm": "exposed"}  # names of the legend on a narrow screen
_TICK = 12  # columns at least, from one time of the axis to the next


def heading(view: TimelineView) -> str:
    """What is shown, and for how long."""
    steps = view.steps
    around = f", around step {steps[view.step].number}" if steps else ""
    names: dict[Mode, str] = {
        "all": several(len(view.group or view.numbers), "rank"),
        "rank": f"rank {view.rank}",
        "pair": f"rank {view.rank} vs rank {view.other}",
    }
    (first, last), count = _shown(view), len(view.rows)
    part = f"; {first + 1}-{last} of {count}" if last - first < count else ""
    return f"{names[view.mode]}{around}: {ns_as_ms(view.end - view.begin)} ms from left to right{part}"


def picture(view: TimelineView) -> Text:
    """Axis, rows, legend; of a pair a line between the two ranks."""
    first, last = _shown(view)
    lines, between = _lines_of_row(view)
    text = Text().append_text(_axis(view)).append("\n")
    for place in range(first, last):
        row = view.rows[place]
        if view.mode == "pair" and place > first and row.ranks != view.rows[place - 1].ranks:
            text.append(f" {'─' * (LABEL + view.columns - 1)}\n", "dim")
        for painted in painted_row(row, view.column, place == view.lane, lines, between):
            text.append_text(painted).append("\n")
    return text.append_text(_legend(view, view.rows[first:last]))


def _lines_of_row(view: TimelineView) -> tuple[int, int]:
    """The lines of a row and the blank ones below it: more than one where the screen has lines for it."""
    height = view.room // max(len(view.rows), 1)
    return (2, 1) if height > 2 else (1, 1) if height == 2 else (1, 0)


def _shown(view: TimelineView) -> Window:
    """From which row to which there is room for."""
    return seen_rows(len(view.rows), view.lane, view.room)


def _axis(view: TimelineView) -> Text:
    """Times since the start of the step, at round numbers; of one that the cursor's mark lies in only the tick."""
    steps, columns = view.steps, view.columns
    zero = steps[view.step].start_ns if steps else view.begin
    per_cell = (view.end - view.begin) / columns
    every = _round(per_cell * _TICK)
    marks = [" "] * columns
    for number in range(-int((zero - view.begin) // every), int((view.end - zero) // every) + 1):
        at = round((zero + number * every - view.begin) / per_cell)
        words = f"╷{number * every / 1e6:,g}"
        if at < view.column < at + len(words):  # the cursor's mark would hide a digit
            words = words[:1]
        if at + len(words) <= columns:
            marks[at : at + len(words)] = words
    text = Text(f"{' ms':<{LABEL}}{''.join(marks[: view.column])}", "dim")
    return Text().append_text(text).append("▼", "bold").append("".join(marks[view.column + 1 :]), "dim")


def _round(least_ns: float) -> float:
    """The next of 1, 2, 5, 10, 20, ... ns."""
    power = 10.0 ** int(math.log10(max(least_ns, 1)))
    return next((times * power for times in (1, 2, 5) if times * power >= least_ns), 10 * power)


def _legend(view: TimelineView, rows: list[Row]) -> Text:
    """What the signs of the rows stand for: classes of a rank's time, kinds of work on a stream."""
    seen = {cell.sign for row in rows if row.lane is None and not row.level for cell in row.cells}
    every = {part.block: (style_of(part.role), part.name) for part in PARTS}
    signs = {sign: shown for sign, shown in every.items() if sign in seen}
    kinds = {piece.kind for row in rows if row.lane is not None for piece in row.lane.pieces}
    for kind, (sign, style) in SIGNS.items():
        if kind in kinds:
            signs.setdefault(sign, (style, kind_name(kind)))
    if any(cell.sign == PARTLY for row in rows if not row.level for cell in row.cells):
        signs[PARTLY] = "", "partly busy"
    room, letters = LABEL + view.columns, sum(len(name) + 3 for _, name in signs.values()) - 1
    if letters > room:
        signs.pop(PARTLY, None)
    if sum(len(name) + 3 for _, name in signs.values()) - 1 > room:
        signs = {sign: (style, _SHORT.get(name, name)) for sign, (style, name) in signs.items()}
    wide = letters + len(signs) <= room
    text = Text()
    for sign, (style, name) in signs.items():
        text.append(sign, style).append(f" {name}{'  ' if wide else ' '}", "dim")
    return text


def words(view: TimelineView, width: int) -> Iterator[Line]:
    """On what is under the cursor, and the command that shows Python functions where this trace has none."""
    if not view.rows:
        yield from wrapped("Nothing here.", width)
        return
    row = view.rows[view.lane]
    yield from _under_cursor(view, row, width)
    _, command = without_functions(view)
    if command:
        yield from labelled("Functions", command, width, role="code")


def _under_cursor(view: TimelineView, row: Row, width: int) -> Iterator[Line]:
    rank = row.ranks[0]
    cell = view.cell(rank)
    path = view.lanes(rank).host.path(sum(cell) // 2) if len(row.ranks) == 1 else []
    found = view.found if view.found and view.row_of(view.found) == view.lane else None
    if row.level:
        yield from under_cursor.of_level(row, under_cursor.event_at(row, cell), found, path, width)
    elif row.lane is not None:
        piece = under_cursor.piece_at(row, view.cell_drawn())
        yield from under_cursor.of_lane(row, piece, view.end - view.begin, found, path, width)
    elif view.run_time is not None:
        ranks = [view.run_time.ranks[number] for number in row.ranks]
        offset = view.offset(rank)
        window, common = (view.begin, view.end), (cell[0] + offset, cell[1] + offset)
        lag_ns = view.lags.get(rank, 0) if len(row.ranks) == 1 else 0
        yield from under_cursor.of_ranks(row, ranks, window, common, path, lag_ns, width)


def without_functions(view: TimelineView) -> tuple[str, str]:
    """Of an opened rank without Python functions: where they are, and the command that shows them, if any."""
    if view.mode == "all" or not view.rows:
        return "", ""
    rank = view.rows[view.lane].ranks[0]
    if view.lanes(rank).host.has_functions:
        return "", ""
    detailed = next(trace.detailed_source for trace in view.run.ranks if trace.rank == rank)
    if detailed is not None:
        return "Python functions: in the detailed trace; y copies its command", f"dptune report {shlex.quote(detailed)}"
    return "Python functions: none; `dptune profile` or with_stack=True records them", ""

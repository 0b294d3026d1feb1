"""The timeline tab: all ranks at the same moment, what one rank ran, or two ranks one above the other."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import ClassVar, Literal

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container
from textual.widgets import Static
from textual.worker import get_current_worker

from dptune.advice import Report
from dptune.measure.lanes import RankLanes, SearchHit, median_of
from dptune.measure.rank_time import RunTime
from dptune.measure.steps.windows import Step
from dptune.present.amounts import ns_as_ms, several
from dptune.present.lines import Line, wrapped
from dptune.present.step_classes import PARTS, kind_name
from dptune.present.tui import under_cursor
from dptune.present.tui.pane import FRAMED, STYLES, Pane
from dptune.present.tui.rows import LABEL, SIGNS, Row, painted_row, seen_rows
from dptune.present.tui.scene import (
    Window,
    folded,
    lags_of,
    late_rank,
    rank_rows,
    run_rows,
    usual_rank,
)
from dptune.present.visible import visible
from dptune.trace.run import Run

_AROUND = 2  # lines above and below the rows
_FRAME = 4  # columns of border and padding
_LEAST_NS = 1000  # that a screen shows
_ZOOM = 2.0
_PAN = 0.25
_TICK = 12  # columns at least, from one time of the axis to the next
_EVERY = 8  # ranks read, from one word on it to the next
_OPENED_RANKS = 4  # whose lanes are kept

Mode = Literal["all", "rank", "pair"]


class Timeline(Container, can_focus=True):
    """Rows above, what is under the cursor below.

    `_begin` and `_end` are moments of the clock of the first rank's trace; of the rank's own while only that was read.
    """

    DEFAULT_CSS = """
    Timeline { layout: vertical; }
    Timeline #lanes { height: 1fr; padding: 0 1; }
    Timeline Pane { height: 8; }
    """
    BINDINGS: ClassVar = [
        Binding("left", "move(-1)", "Left", id="time.left", tooltip="Move the cursor; scroll at the edge", show=False),
        Binding("right", "move(1)", "Right", id="time.right", tooltip="The same to the right", show=False),
        Binding("up", "lane(-1)", "Lane", id="lane.up", tooltip="The lane above", show=False),
        Binding("down", "lane(1)", "Lane", id="lane.down", tooltip="The lane below", show=False),
        Binding(
            "enter", "open", "Open", id="lane.open", tooltip="Open the ranks of a host, a rank, or zoom to a range"
        ),
        Binding("escape", "back", "Back", id="lane.back", tooltip="Back to all ranks", key_display="esc"),
        Binding(
            "plus,equals_sign", "zoom(1)", "Zoom", id="time.in", tooltip="Zoom in at the cursor", key_display="+ -"
        ),
        Binding("minus", "zoom(-1)", "Out", id="time.out", tooltip="Zoom out", key_display="-", show=False),
        Binding("n", "step(1)", "Step", id="step.next", tooltip="The next step"),
        Binding("p", "step(-1)", "Step before", id="step.before", tooltip="The previous step", show=False),
        Binding("0", "step(0)", "Whole step", id="step.whole", tooltip="The whole step again", show=False),
        Binding("r", "rank(1)", "Rank", id="rank.next", tooltip="The next rank, at the same step"),
        Binding("b", "beside", "Beside", id="rank.beside", tooltip="The straggler and another rank at the same moment"),
    ]

    def __init__(self, run: Run, report: Report) -> None:
        super().__init__(id="timeline")
        self._run = run
        self._numbers = [rank.rank for rank in run.ranks]
        self._late, self._lags = late_rank(report), lags_of(report)
        account = report.measured.known("account")
        unsplit = account is not None and account.exposed_unsplit_ns > account.exposed_transfer_ns
        self._without = "exposed transfer" if unsplit else "exposed comm"  # one block stands for both
        self._mode: Mode = "all" if len(self._numbers) > 1 else "rank"
        self._rank = self._late if self._late in self._numbers else next(iter(self._numbers), 0)
        self._other: int | None = None  # the second rank of a pair
        self._group: tuple[int, ...] = ()  # ranks of a row that was opened; none: all of them
        self._step = self._lane = self._column = 0
        self._begin = self._end = 0
        self._found: SearchHit | None = None  # the operation that was found last, until the cursor moves
        self._run_time: RunTime | None = None
        self._reading, self._failure = "", ""
        self._lanes_of: dict[int, RankLanes] = {}
        self._rows: list[Row] = []

    def compose(self) -> ComposeResult:
        """The rows, then words."""
        yield Static(id="lanes", classes=FRAMED)
        pane = Pane(self._words, id="under-cursor", classes=FRAMED)
        pane.border_title = "Under the cursor"
        yield pane

    def on_show(self) -> None:
        """The ranks are put on one clock when someone looks, beside the interface."""
        if len(self._numbers) > 1 and self._run_time is None and not self._reading:
            self._reading = "reading ..."
            self.run_worker(self._read, thread=True)
        if self._mode == "rank" and not self._end:
            self._whole_median()
        self._draw()

    def _read(self) -> None:
        worker = get_current_worker()

        def progress(done: int, of: int) -> None:
            self._reading = f"reading rank {done + 1:,} of {of:,} ..." if done < of else "comparing the ranks ..."
            if not worker.is_cancelled and done % _EVERY in (0, of % _EVERY):
                self.app.call_from_thread(self._draw)

        try:
            found = RunTime(self._run, progress)
        except Exception as error:
            self._failure = f"the ranks cannot be compared: {type(error).__name__}: {error}"
            found = None
        if not worker.is_cancelled:
            self.app.call_from_thread(self._keep, found)

    def _keep(self, run_time: RunTime | None) -> None:
        """Show all ranks, or the one that was opened meanwhile where it lies on the common clock."""
        self._reading, self._run_time = "", run_time
        if run_time is None:
            self._mode = "rank"
            self._whole_median()
            return
        offset = self._offset(self._rank)
        if self._end:
            chosen = self._rows[self._lane] if self._rows else None
            self._look(self._begin + offset, self._end + offset)
            if chosen is not None:  # the time of the rank is a row more
                self._lane = next((at for at, row in enumerate(self._rows) if row.draws(chosen)), self._lane)
                self._draw()
        else:
            self._whole_median()

    def on_resize(self) -> None:
        """Another width shows other parts."""
        self._look(self._begin, self._end)

    def go_to(self, rank: int, start_ns: int | None = None, end_ns: int | None = None) -> None:
        """Show a stretch of a rank's time, with as much again on both sides; its median step where none is named."""
        if rank not in self._numbers:
            return
        self._mode, self._rank = "rank", rank
        if start_ns is None:
            self._whole_median()
            return
        end = start_ns if end_ns is None else end_ns
        self._column = self._columns // 2
        room, offset = max(end - start_ns, _LEAST_NS), self._offset(rank)
        self._look(start_ns - room + offset, end + room + offset)
        self._lane = self._busy_row()
        self._draw()

    def _busy_row(self) -> int:
        """The first stream that does something under the cursor; where none does, the innermost range of the host."""
        streams = [at for at, row in enumerate(self._rows) if row.lane is not None]
        busy = [at for at in streams if under_cursor.piece_at(self._rows[at], self._cell_drawn())]
        levels = [
            at
            for at, row in enumerate(self._rows)
            if row.level and under_cursor.event_at(row, self._cell(row.ranks[0]))
        ]
        return next(iter([*busy, *reversed(levels), *streams]), 0)

    def find(self, words: str) -> str:
        """Go to the next operation of the rank under the cursor that has the words in its name."""
        if not words or not self._numbers:
            return ""
        if self._mode == "all":
            self._rank, self._mode = self._chosen_rank, "rank"
            self._look(self._begin, self._end)
        lanes, offset = self._lanes(self._rank), self._offset(self._rank)
        after = self._found.start_ns if self._found is not None else sum(self._cell(self._rank)) // 2
        found = lanes.next_named(words, after)
        if found is None:
            return "none on this rank"
        start, end = found.start_ns + offset, found.end_ns + offset
        length = max(self._end - self._begin, end - start)
        self._column = self._columns // 2
        self._mode = "rank"
        self._look((start + end - length) // 2, (start + end + length) // 2)
        self._lane, self._found = self._row_of(found), found
        self._draw()
        return f"{found.at:,} of {found.many:,}"

    def _row_of(self, found: SearchHit) -> int:
        """The row of an operation: its stream; of what the host runs, its level, else the one that it lies in."""
        streams = [at for at, row in enumerate(self._rows) if row.number == found.lane]
        named = [
            at
            for at, row in enumerate(self._rows)
            if any(event.start_ns == found.start_ns and event.name == found.name for event in row.level)
        ]
        return next(iter([*named, *streams]), 0)

    def action_move(self, by: int) -> None:
        """Move the cursor; past the edge the picture moves."""
        if not self._rows:
            return
        self._found = None
        self._column += by
        if not 0 <= self._column < self._columns:
            shift = int((self._end - self._begin) * _PAN) * by
            self._column = min(max(self._column, 0), self._columns - 1) - round(self._columns * _PAN) * by
            self._look(self._begin + shift, self._end + shift)
        self._draw()

    def action_lane(self, by: int) -> None:
        """Go to another row."""
        self._lane = min(max(self._lane + by, 0), max(len(self._rows) - 1, 0))
        self._draw()

    def action_open(self) -> None:
        """What the cursor is on, in detail."""
        if not self._rows:
            return
        row = self._rows[self._lane]
        if self._mode == "all":
            if len(row.ranks) > 1:
                self._group = row.ranks
            else:
                self._mode, self._rank = "rank", row.ranks[0]
            self._lane = 0
            self._look(self._begin, self._end)
            return
        offset = self._offset(row.ranks[0])
        if event := under_cursor.event_at(row, self._cell(row.ranks[0])):
            self._zoom_to(event.start_ns + offset, event.end_ns + offset)
            levels = ((at, shown) for at, shown in enumerate(self._rows) if shown.ranks == row.ranks)
            self._lane = next((at for at, shown in levels if event in shown.level), self._lane)
            self._draw()
        elif piece := under_cursor.piece_at(row, self._cell_drawn()):
            self._zoom_to(self._begin + piece.start_ns, self._begin + piece.start_ns + piece.length_ns)

    def _zoom_to(self, start: int, end: int) -> None:
        self._column = self._columns // 2
        self._look(start, end)

    def action_back(self) -> None:
        """From a rank to all ranks, from the ranks of a host to all hosts."""
        if self._run_time is None or (self._mode == "all" and not self._group):
            return
        if self._mode == "all":
            self._group = ()
        self._mode, self._lane = "all", 0
        self._look(self._begin, self._end)
        self._lane = next((at for at, row in enumerate(self._rows) if self._rank in row.ranks), 0)
        self._draw()

    def action_beside(self) -> None:
        """Two ranks, one above the other, at the same moment."""
        if self._run_time is None:
            self.app.notify("There is no other rank to compare with.", markup=False, timeout=2)
            return
        self._rank = self._chosen_rank
        if self._mode == "pair":
            self._mode = "rank"
        else:
            self._mode = "pair"
            self._other = usual_rank(self._rank, self._numbers, self._lags, self._late)
            if self._other is not None and self._other == self._late:
                self._rank, self._other = self._other, self._rank
        self._lane = 0
        self._look(self._begin, self._end)

    @property
    def _chosen_rank(self) -> int:
        """The rank of the row under the cursor."""
        return self._rows[self._lane].ranks[0] if self._rows and self._mode == "all" else self._rank

    def action_zoom(self, by: int) -> None:
        """Nearer or farther, with the cursor where it is."""
        if not self._rows:
            return
        length, (first, last) = self._end - self._begin, self._recorded_ns
        wanted = max(min(int(length / _ZOOM if by > 0 else length * _ZOOM), last - first), _LEAST_NS)
        at = self._begin + length * (self._column + 0.5) / self._columns
        begin = int(at - wanted * (self._column + 0.5) / self._columns)
        begin = max(min(begin, last - wanted), first) if by < 0 else begin
        self._look(begin, begin + wanted)

    @property
    def _recorded_ns(self) -> Window:
        if self._mode != "rank" and self._run_time is not None:
            return self._run_time.recorded_ns
        low, high = self._lanes(self._rank).recorded_ns
        return low + self._offset(self._rank), high + self._offset(self._rank)

    def action_step(self, by: int) -> None:
        """Another step, as a whole."""
        steps = self._steps
        if steps:
            self._whole(min(max(self._step + by, 0), len(steps) - 1))

    def action_rank(self, by: int) -> None:
        """Another rank, at the same place in its steps; in a pair, another second rank; of all ranks, the next row."""
        if self._mode == "all":
            self._lane = (self._lane + by) % max(len(self._rows), 1)
            self._draw()
            return
        if self._mode == "pair" and self._other is not None:
            others = [number for number in self._numbers if number != self._rank]
            self._other = others[(others.index(self._other) + by) % len(others)]
            self._look(self._begin, self._end)
            return
        self._rank = self._numbers[(self._numbers.index(self._rank) + by) % len(self._numbers)]
        self._whole(min(self._step, len(self._steps) - 1))

    @property
    def _columns(self) -> int:
        """Cells of a row."""
        return max(self.size.width - LABEL - _FRAME, 10)

    @property
    def _room(self) -> int:
        """Rows that the screen has lines for."""
        return max(self.query_one("#lanes").size.height - _AROUND, 1)

    def _lanes(self, rank: int) -> RankLanes:
        """What a rank ran; of the few ranks that were looked at last it is kept."""
        if rank not in self._lanes_of:
            while len(self._lanes_of) >= _OPENED_RANKS:
                self._lanes_of.pop(next(iter(self._lanes_of)))
            seen = self._run_time.ranks[rank].view if self._run_time is not None else None
            self._lanes_of[rank] = RankLanes(self._run, rank, seen)
        return self._lanes_of[rank]

    def _offset(self, rank: int) -> int:
        """What to add to a time of a rank's trace to have it by the clock of the picture."""
        return self._run_time.ranks[rank].offset_ns if self._run_time is not None else 0

    @property
    def _steps(self) -> list[Step]:
        """The steps of the rank, by the clock of the picture."""
        if self._run_time is not None:
            return self._run_time.ranks[self._rank].steps
        return self._lanes(self._rank).steps

    def _whole_median(self) -> None:
        self._column = self._columns // 2
        self._whole(median_of(self._steps) or 0)

    def _whole(self, place: int) -> None:
        """A step as a whole: on all ranks that are shown. Without steps, all that was recorded."""
        steps = self._steps
        if not steps:
            self._look(*self._recorded_ns)
            return
        step = steps[place]
        everywhere = self._run_time.step(step.number) if self._run_time is not None and self._mode != "rank" else None
        shown = everywhere or step
        self._look(shown.start_ns, shown.end_ns)
        self._step = place
        self._draw()

    def _look(self, begin: int, end: int) -> None:
        if end <= begin or not self._numbers or (self._mode == "all" and self._run_time is None):
            return
        self._found = None
        self._begin, self._end = begin, max(end, begin + _LEAST_NS)
        middle = (self._begin + self._end) // 2
        begun = [at for at, step in enumerate(self._steps) if step.start_ns <= middle]
        self._step = begun[-1] if begun else 0
        self._rows = self._scene()
        self._lane = min(self._lane, max(len(self._rows) - 1, 0))
        self._column = min(max(self._column, 0), self._columns - 1)
        self._draw()

    def _scene(self) -> list[Row]:
        """The rows of the mode."""
        if self._mode == "all" and self._run_time is not None:
            names = folded(self._run_time, self._group or self._numbers, self._late, self._room)
            return self._time_rows(names)
        if self._mode == "pair" and self._other is not None:
            half = max(self._room // 2, 3)
            return [row for rank in (self._rank, self._other) for row in self._rank_rows(rank, half)]
        return self._rank_rows(self._rank)

    def _rank_rows(self, rank: int, most: int | None = None) -> list[Row]:
        offset = self._offset(rank)
        window = self._begin - offset, self._end - offset
        return rank_rows(self._lanes(rank), window, self._columns, self._time_rows([(f"r{rank}", (rank,))]), most)

    def _time_rows(self, names: Iterable[tuple[str, tuple[int, ...]]]) -> list[Row]:
        if self._run_time is None:
            return []
        window = self._begin, self._end
        return run_rows(self._run_time, list(names), window, self._columns, self._late, self._lags)

    def _draw(self) -> None:
        if not self.is_mounted:
            return
        lanes = self.query_one("#lanes", Static)
        lanes.border_title = Text(self._heading()) if self._rows else "Timeline"
        lanes.update(self._picture())
        self.query_one(Pane).show(self._words)

    def _picture(self) -> Text:
        if not self._rows:
            return Text(visible(self._failure) or self._reading or "No events were found in this rank's trace.")
        first, last = self._shown
        text = Text().append_text(self._axis()).append("\n")
        for place in range(first, last):
            text.append_text(painted_row(self._rows[place], self._column, place == self._lane)).append("\n")
        return text.append_text(self._legend())

    @property
    def _shown(self) -> Window:
        """From which row to which there is room for."""
        return seen_rows(len(self._rows), self._lane, self._room)

    def _heading(self) -> str:
        steps = self._steps
        around = f", around step {steps[self._step].number}" if steps else ""
        names: dict[Mode, str] = {
            "all": several(len(self._group or self._numbers), "rank"),
            "rank": f"rank {self._rank}",
            "pair": f"rank {self._rank} beside rank {self._other}",
        }
        (first, last), count = self._shown, len(self._rows)
        part = f"; {first + 1}-{last} of {count}" if last - first < count else ""
        return f"{names[self._mode]}{around}: {ns_as_ms(self._end - self._begin)} ms from left to right{part}"

    def _axis(self) -> Text:
        """Times since the start of the step, at round numbers."""
        steps = self._steps
        zero = steps[self._step].start_ns if steps else self._begin
        per_cell = (self._end - self._begin) / self._columns
        every = _round(per_cell * _TICK)
        marks = [" "] * self._columns
        for number in range(-int((zero - self._begin) // every), int((self._end - zero) // every) + 1):
            at = round((zero + number * every - self._begin) / per_cell)
            words = f"╷{number * every / 1e6:,g}"
            if at + len(words) <= self._columns:
                marks[at : at + len(words)] = words
        text = Text(f"{' ms':<{LABEL}}{''.join(marks[: self._column])}", "dim")
        return Text().append_text(text).append("▼", "bold").append("".join(marks[self._column + 1 :]), "dim")

    def _legend(self) -> Text:
        """What the signs that can be seen stand for."""
        parts = {part.block: part for part in PARTS if part.name != self._without}
        signs = [(part.block, STYLES.get(part.role, ""), part.name) for part in parts.values()]
        if self._mode != "all":
            kinds = {piece.kind for row in self._rows if row.lane is not None for piece in row.lane.pieces}
            drawn = [(sign, style, kind_name(kind)) for kind, (sign, style) in SIGNS.items() if kind in kinds]
            signs = [*{sign: (sign, style, name) for sign, style, name in reversed(drawn)}.values()][::-1]
        text = Text()
        for sign, style, name in signs:
            text.append(sign, style).append(f" {name}  ", "dim")
        return text

    def _cell(self, rank: int) -> Window:
        """The moments between which the cursor is, by the clock of a rank's trace."""
        length, offset = (self._end - self._begin) / self._columns, self._offset(rank)
        begin = self._begin - offset
        return int(begin + self._column * length), int(begin + (self._column + 1) * length)

    def _cell_drawn(self) -> Window:
        """The same, since where drawing begins."""
        length = (self._end - self._begin) / self._columns
        return int(self._column * length), int((self._column + 1) * length)

    def _words(self, width: int) -> list[Line]:
        if not self._rows:
            return list(wrapped("Nothing here.", width))
        row = self._rows[self._lane]
        rank = row.ranks[0]
        cell = self._cell(rank)
        path = self._lanes(rank).host.path(sum(cell) // 2) if len(row.ranks) == 1 else []
        found = self._found if self._found and self._row_of(self._found) == self._lane else None
        if row.level:
            return list(under_cursor.of_level(row, under_cursor.event_at(row, cell), found, path, width))
        if row.lane is not None:
            piece = under_cursor.piece_at(row, self._cell_drawn())
            return list(under_cursor.of_lane(row, piece, self._end - self._begin, found, path, width))
        if self._run_time is None:
            return []
        ranks = [self._run_time.ranks[number] for number in row.ranks]
        offset = self._offset(rank)
        window, common = (self._begin, self._end), (cell[0] + offset, cell[1] + offset)
        lag_ns = self._lags.get(rank, 0) if len(row.ranks) == 1 else 0
        return list(under_cursor.of_ranks(row, ranks, window, common, path, lag_ns, width))


def _round(least_ns: float) -> float:
    """The next of 1, 2, 5, 10, 20, ... ns."""
    power = 10.0 ** int(math.log10(max(least_ns, 1)))
    return next((times * power for times in (1, 2, 5) if times * power >= least_ns), 10 * power)

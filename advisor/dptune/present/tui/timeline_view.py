"""What the timeline shows: which ranks, which stretch of time, and where the cursor is. No widget."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from dptune.advice import Report
from dptune.measure.lanes import RankLanes, SearchHit, median_of
from dptune.measure.rank_time import RunTime
from dptune.measure.steps.windows import Step
from dptune.present.tui import under_cursor
from dptune.present.tui.rows import Row
from dptune.present.tui.scene import (
    Window,
    folded,
    lags_of,
    late_ranks_of,
    rank_rows,
    run_rows,
    usual_rank,
)
from dptune.trace.run import Run

_LEAST_NS = 1000  # that a screen shows
_LEAST_CELLS = 4  # of what was found
_MOST_OF_STEP, _MARGIN = 0.5, 0.05  # what takes more of a step is shown with little around it
_ZOOM = 2.0
_PAN = 0.25
_OPENED_RANKS = 4  # whose lanes are kept
_DIVIDER = 1  # lines between two ranks

Mode = Literal["all", "rank", "pair"]


class TimelineView:
    """Rows over a stretch of time, and the cursor among them.

    `begin` and `end` are moments of the clock of the first rank's trace; of the rank's own while only that was read.
    `screen` says how many cells a row has, and how many rows there is room for.
    """

    def __init__(self, run: Run, report: Report, screen: Callable[[], tuple[int, int]]) -> None:
        self.run = run
        self.numbers = [rank.rank for rank in run.ranks]
        self.late_ranks, self.lags = late_ranks_of(report), lags_of(report)
        self.late = next(iter(self.late_ranks), None)  # with whom others are compared
        self.mode: Mode = "all" if len(self.numbers) > 1 else "rank"
        self.rank = self.late if self.late in self.numbers else next(iter(self.numbers), 0)
        self.other: int | None = None  # the second rank of a pair
        self.group: tuple[int, ...] = ()  # ranks of a row that was opened; none: all of them
        self.step = self.lane = self.column = 0
        self.begin = self.end = 0
        self.found: SearchHit | None = None  # the operation that was found last, until the cursor moves
        self.run_time: RunTime | None = None
        self.rows: list[Row] = []
        self._screen = screen
        self._lanes_of: dict[int, RankLanes] = {}

    @property
    def columns(self) -> int:
        """Cells of a row."""
        return self._screen()[0]

    @property
    def room(self) -> int:
        """Rows that the screen has lines for."""
        return max(self._screen()[1] - (_DIVIDER if self.mode == "pair" else 0), 1)

    def show_ranks(self, run_time: RunTime | None) -> None:
        """All ranks are on one clock: show them, or the one that was opened before; without that clock one rank."""
        self.run_time = run_time
        if run_time is None:
            self.mode = "rank"
            self.whole_median()
            return
        offset = self.offset(self.rank)
        if self.end:
            chosen = self.rows[self.lane] if self.rows else None
            self.look(self.begin + offset, self.end + offset)
            if chosen is not None:  # the time of the rank is a row more
                self.lane = next((at for at, row in enumerate(self.rows) if row.draws(chosen)), self.lane)
        else:
            self.whole_median()

    def go_to(self, rank: int, start_ns: int | None = None, end_ns: int | None = None) -> None:
        """Show a stretch of a rank's time, with as much again on both sides, with less of one that is most of a step;
        its median step where none is named.
        """
        if rank not in self.numbers:
            return
        self.mode, self.rank = "rank", rank
        if start_ns is None:
            self.whole_median()
            return
        end = start_ns if end_ns is None else end_ns
        self.column = self.columns // 2
        length, offset = max(end - start_ns, _LEAST_NS), self.offset(rank)
        is_long = any(length > _MOST_OF_STEP * step.length_ns for step in self.steps)
        room = int(length * (_MARGIN if is_long else 1))
        self.look(start_ns - room + offset, end + room + offset)
        self.lane = self._busy_row()

    def _busy_row(self) -> int:
        """The first stream that does something under the cursor; where none does, the innermost range of the host."""
        streams = [at for at, row in enumerate(self.rows) if row.lane is not None]
        busy = [at for at in streams if under_cursor.piece_at(self.rows[at], self.cell_drawn())]
        levels = [
            at for at, row in enumerate(self.rows) if row.level and under_cursor.event_at(row, self.cell(row.ranks[0]))
        ]
        return next(iter([*busy, *reversed(levels), *streams]), 0)

    def find(self, words: str) -> str:
        """Go to the next operation of the rank under the cursor that has the words in its name."""
        if not words or not self.numbers:
            return ""
        if self.mode == "all":
            self.rank, self.mode = self.chosen_rank, "rank"
            self.look(self.begin, self.end)
        lanes, offset = self.lanes(self.rank), self.offset(self.rank)
        after = self.found.start_ns if self.found is not None else sum(self.cell(self.rank)) // 2
        found = lanes.next_named(words, after)
        if found is None:
            return "none on this rank"
        start, end = found.start_ns + offset, found.end_ns + offset
        length = max(min(self.end - self.begin, (end - start) * self.columns // _LEAST_CELLS), end - start, _LEAST_NS)
        self.column = self.columns // 2
        self.mode = "rank"
        self.look((start + end - length) // 2, (start + end + length) // 2)
        self.lane, self.found = self.row_of(found), found
        return f"{found.at:,} of {found.many:,}"

    def row_of(self, found: SearchHit) -> int:
        """The row of an operation: its stream; of what the host runs, its level, else the one that it lies in."""
        streams = [at for at, row in enumerate(self.rows) if row.number == found.lane]
        named = [
            at
            for at, row in enumerate(self.rows)
            if any(event.start_ns == found.start_ns and event.name == found.name for event in row.level)
        ]
        return next(iter([*named, *streams]), 0)

    def move(self, by: int) -> None:
        """Move the cursor; past the edge the picture moves."""
        if not self.rows:
            return
        self.found = None
        self.column += by
        if not 0 <= self.column < self.columns:
            shift = int((self.end - self.begin) * _PAN) * by
            self.column = min(max(self.column, 0), self.columns - 1) - round(self.columns * _PAN) * by
            self.look(self.begin + shift, self.end + shift)

    def move_lane(self, by: int) -> None:
        """Go to another row."""
        self.lane = min(max(self.lane + by, 0), max(len(self.rows) - 1, 0))

    def open(self) -> None:
        """What the cursor is on, in detail."""
        if not self.rows:
            return
        row = self.rows[self.lane]
        if self.mode == "all":
            if len(row.ranks) > 1:
                self.group = row.ranks
            else:
                self.mode, self.rank = "rank", row.ranks[0]
            self.lane = 0
            self.look(self.begin, self.end)
            return
        offset = self.offset(row.ranks[0])
        if event := under_cursor.event_at(row, self.cell(row.ranks[0])):
            self._zoom_to(event.start_ns + offset, event.end_ns + offset)
            levels = ((at, shown) for at, shown in enumerate(self.rows) if shown.ranks == row.ranks)
            self.lane = next((at for at, shown in levels if event in shown.level), self.lane)
        elif piece := under_cursor.piece_at(row, self.cell_drawn()):
            self._zoom_to(self.begin + piece.start_ns, self.begin + piece.start_ns + piece.length_ns)

    def _zoom_to(self, start: int, end: int) -> None:
        self.column = self.columns // 2
        self.look(start, end)

    def back(self) -> None:
        """From a rank to all ranks, from the ranks of a host to all hosts."""
        if not self.can_go_back:
            return
        if self.mode == "all":
            self.group = ()
        self.mode, self.lane = "all", 0
        self.look(self.begin, self.end)
        self.lane = next((at for at, row in enumerate(self.rows) if self.rank in row.ranks), 0)

    @property
    def can_go_back(self) -> bool:
        """Whether fewer ranks are shown than there are."""
        return self.run_time is not None and (self.mode != "all" or bool(self.group))

    def beside(self) -> None:
        """Two ranks, one above the other, at the same moment; one of them again after that."""
        self.rank = self.chosen_rank
        if self.mode == "pair":
            self.mode = "rank"
        else:
            self.mode = "pair"
            self.other = usual_rank(self.rank, self.numbers, self.lags, self.late)
            if self.other is not None and self.other == self.late:
                self.rank, self.other = self.other, self.rank
        self.lane = 0
        self.look(self.begin, self.end)

    @property
    def chosen_rank(self) -> int:
        """The rank of the row under the cursor."""
        return self.rows[self.lane].ranks[0] if self.rows and self.mode == "all" else self.rank

    def zoom(self, by: int) -> None:
        """Nearer or farther, with the cursor where it is."""
        if not self.rows:
            return
        length, (first, last) = self.end - self.begin, self._recorded_ns
        wanted = max(min(int(length / _ZOOM if by > 0 else length * _ZOOM), last - first), _LEAST_NS)
        at = self.begin + length * (self.column + 0.5) / self.columns
        begin = int(at - wanted * (self.column + 0.5) / self.columns)
        begin = max(min(begin, last - wanted), first) if by < 0 else begin
        self.look(begin, begin + wanted)

    @property
    def _recorded_ns(self) -> Window:
        if self.mode != "rank" and self.run_time is not None:
            return self.run_time.recorded_ns
        low, high = self.lanes(self.rank).recorded_ns
        return low + self.offset(self.rank), high + self.offset(self.rank)

    def move_step(self, by: int) -> None:
        """Another step, as a whole."""
        if self.steps:
            self._whole(min(max(self.step + by, 0), len(self.steps) - 1))

    def move_rank(self, by: int) -> None:
        """Another rank, at the same place in its steps; in a pair, another second rank; of all ranks, the next row."""
        if self.mode == "all":
            self.lane = (self.lane + by) % max(len(self.rows), 1)
            return
        if self.mode == "pair" and self.other is not None:
            others = [number for number in self.numbers if number != self.rank]
            self.other = others[(others.index(self.other) + by) % len(others)]
            self.look(self.begin, self.end)
            return
        self.rank = self.numbers[(self.numbers.index(self.rank) + by) % len(self.numbers)]
        self._whole(min(self.step, len(self.steps) - 1))

    def lanes(self, rank: int) -> RankLanes:
        """What a rank ran; of the few ranks that were looked at last it is kept."""
        if rank not in self._lanes_of:
            while len(self._lanes_of) >= _OPENED_RANKS:
                self._lanes_of.pop(next(iter(self._lanes_of)))
            seen = self.run_time.ranks[rank].view if self.run_time is not None else None
            self._lanes_of[rank] = RankLanes(self.run, rank, seen)
        return self._lanes_of[rank]

    def offset(self, rank: int) -> int:
        """What to add to a time of a rank's trace to have it by the clock of the picture."""
        return self.run_time.ranks[rank].offset_ns if self.run_time is not None else 0

    @property
    def steps(self) -> list[Step]:
        """The steps of the rank, by the clock of the picture."""
        if self.run_time is not None:
            return self.run_time.ranks[self.rank].steps
        return self.lanes(self.rank).steps

    def whole_median(self) -> None:
        """The step of median length as a whole."""
        self.column = self.columns // 2
        self._whole(median_of(self.steps) or 0)

    def _whole(self, place: int) -> None:
        """A step as a whole: on all ranks that are shown. Without steps, all that was recorded."""
        steps = self.steps
        if not steps:
            self.look(*self._recorded_ns)
            return
        step = steps[place]
        everywhere = self.run_time.step(step.number) if self.run_time is not None and self.mode != "rank" else None
        shown = everywhere or step
        self.look(shown.start_ns, shown.end_ns)
        self.step = place

    def look(self, begin: int, end: int) -> None:
        """Show a stretch of time."""
        if end <= begin or not self.numbers or (self.mode == "all" and self.run_time is None):
            return
        self.found = None
        self.begin, self.end = begin, max(end, begin + _LEAST_NS)
        middle = (self.begin + self.end) // 2
        begun = [at for at, step in enumerate(self.steps) if step.start_ns <= middle]
        self.step = begun[-1] if begun else 0
        self.rows = self._scene()
        self.lane = min(self.lane, max(len(self.rows) - 1, 0))
        self.column = min(max(self.column, 0), self.columns - 1)

    def _scene(self) -> list[Row]:
        """The rows of the mode."""
        if self.mode == "all" and self.run_time is not None:
            names = folded(self.run_time, self.group or self.numbers, self.late_ranks, self.room)
            return self._time_rows(names)
        if self.mode == "pair" and self.other is not None:
            half = max(self.room // 2, 3)
            return [row for rank in (self.rank, self.other) for row in self._rank_rows(rank, half)]
        return self._rank_rows(self.rank)

    def _rank_rows(self, rank: int, most: int | None = None) -> list[Row]:
        offset = self.offset(rank)
        window = self.begin - offset, self.end - offset
        return rank_rows(self.lanes(rank), window, self.columns, self._time_rows([(f"r{rank}", (rank,))]), most)

    def _time_rows(self, names: Iterable[tuple[str, tuple[int, ...]]]) -> list[Row]:
        if self.run_time is None:
            return []
        window = self.begin, self.end
        return run_rows(self.run_time, list(names), window, self.columns, self.late_ranks, self.lags)

    def cell(self, rank: int) -> Window:
        """The moments between which the cursor is, by the clock of a rank's trace."""
        length, offset = (self.end - self.begin) / self.columns, self.offset(rank)
        begin = self.begin - offset
        return int(begin + self.column * length), int(begin + (self.column + 1) * length)

    def cell_drawn(self) -> Window:
        """The same, since where drawing begins."""
        length = (self.end - self.begin) / self.columns
        return int(self.column * length), int((self.column + 1) * length)

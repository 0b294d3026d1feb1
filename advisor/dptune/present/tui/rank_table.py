"""The third tab: a row per rank and device with how late it arrives by step, or a map of many ranks, and details."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import ClassVar, Self

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container
from textual.widgets import DataTable

from dptune.advice import Report
from dptune.measure.steps.history import step_history
from dptune.present.amounts import Hole, ns_as_ms, several, shown
from dptune.present.first_screen import reported_straggler
from dptune.present.lines import BLANK, Line, labelled, line, wrapped
from dptune.present.sections.ranks import COLUMNS, lateness, latest, rank_of_row, rank_remarks, rank_rows, words
from dptune.present.sections.step_history import step_columns
from dptune.present.table import Cell, absent_throughout
from dptune.present.tui.heat import HEAT_CELLS, both_ends, heat
from dptune.present.tui.pane import FRAMED, Layout, Pane, hue, style_of
from dptune.present.tui.rank_map import RankMap
from dptune.present.tui.row_table import RowTable
from dptune.present.tui.target import GoTo
from dptune.present.visible import visible
from dptune.trace.run import Run

_MOST_IN_TABLE = 32  # ranks: of more, the map is shown first
_KEYS = ("sort", "regroup", "next_late")  # of the table or the map alone
_ROWS = 4  # of the plot of a rank's steps
_FIRST = ("rank", "late ms")  # columns that no narrow screen cuts off
_NAMED_BELOW = ("host", "device")
_DEVICE = [column.heading for column in COLUMNS].index("device")
_NUMBER = re.compile(r"-?[\d,]*\.?\d+")


class _Rows(RowTable):
    """A table in which Enter means: show that rank in the timeline."""

    BINDINGS: ClassVar = [
        Binding(
            "enter",
            "select_cursor",
            "In the timeline",
            id="rank.show",
            tooltip="Open the rank's median step in the timeline",
        ),
    ]


class RankTable(Container):
    """The table above, the words below."""

    DEFAULT_CSS = """
    RankTable { layout: vertical; }
    RankTable DataTable { height: auto; max-height: 60%; }
    RankTable RankMap { height: auto; max-height: 50%; }
    RankTable Pane { height: 1fr; }
    RankTable RankMap, RankTable.-map DataTable { display: none; }
    RankTable.-map RankMap { display: block; }
    """
    BINDINGS: ClassVar = [
        Binding("m", "map", "Map", id="ranks.map", tooltip="A cell per rank by host or group; again: the table"),
        Binding("s", "sort", "Sort", id="ranks.sort", tooltip="Sort by the next column, descending; then unsorted"),
        Binding("g", "regroup", "Group", id="map.group", tooltip="Of the map: by host, or by the next kind of group"),
        Binding("n", "next_late", "Next late", id="map.late", tooltip="Of the map: the next late rank, latest first"),
    ]

    def __init__(self, report: Report, run: Run | None = None) -> None:
        """`run`: whose steps are drawn one by one, where it was read."""
        super().__init__(id="ranks")
        self._report, self._run = report, run
        self._rows = list(rank_rows(report))
        self._ranks = rank_of_row(report)
        left_out = absent_throughout(self._rows) if self._rows else {}
        kept = [i for i in range(len(COLUMNS)) if i not in left_out and not self._alike(i)]
        self._kept = sorted(kept, key=lambda i: COLUMNS[i].heading not in _FIRST)
        self._late = reported_straggler(report)
        self._shown = list(range(len(self._rows)))  # in the order of the table
        self._by, self._words = -1, ""  # the column they are sorted by; none at first
        self._heat = _heat_of(report)
        found = report.measured.known("outliers")
        self._map = RankMap(report, found) if found is not None else None
        of_many = self._map is not None and self._map.any_late and len(report.measured.ranks) > _MOST_IN_TABLE
        self.set_class(of_many, "-map")

    def _alike(self, column: int) -> bool:
        """Whether it is the column of hosts or devices, and all ranks ran on one, which the words name."""
        return COLUMNS[column].heading in _NAMED_BELOW and len({str(row[column]) for row in self._rows}) == 1

    def compose(self) -> ComposeResult:
        """Table, then words."""
        rows = _Rows(id="rank-rows")
        rows.border_title = "Ranks"
        yield rows
        if self._map is not None:
            yield self._map
        yield Pane(self._lines_of(0), id="rank-words", classes=FRAMED)

    def on_mount(self) -> None:
        """Fill the table; a column that no rank has is named in the words instead."""
        rows = self.query_one(DataTable)
        for i in self._kept:
            rows.add_column(Text(COLUMNS[i].heading))
            if self._heat and COLUMNS[i].heading == _FIRST[-1]:
                rows.add_column(Text("by step"))
        self._fill()
        self.show_cell()

    def on_resize(self) -> None:
        """Say where columns lie beyond the edge."""
        rows = self.query_one(DataTable)
        words = self.query_one("#rank-words", Pane)
        hidden = not self._map_is_shown and rows.virtual_size.width > rows.size.width
        words.border_subtitle = "left, right: more columns" if hidden else ""

    @on(DataTable.RowHighlighted)
    def show_rank(self, event: DataTable.RowHighlighted) -> None:
        """Show what is known of the row under the cursor."""
        self._show_row(event.cursor_row)

    def _show_row(self, place: int) -> None:
        if not self._map_is_shown:
            title = "Selected rank" if self._by < 0 else f"Sorted by {COLUMNS[self._by].heading}"
            self._show(self._lines_of(place), title)

    @on(DataTable.RowSelected)
    def show_in_timeline(self) -> None:
        """Show the median step of the rank under the cursor."""
        at = self.query_one(DataTable).cursor_row
        if at < len(self._shown):
            self.post_message(GoTo(self._ranks[self._shown[at]].rank))

    @on(RankMap.Moved)
    def show_cell(self) -> None:
        """Show what is known of the rank under the cursor of the map."""
        if self._map is not None and self._map_is_shown:
            self._show(partial(self._map.details, self._report), "Selected rank")

    def _show(self, lines: Layout, title: str) -> None:
        words = self.query_one("#rank-words", Pane)
        words.border_title = title
        words.show(lines)

    @property
    def _map_is_shown(self) -> bool:
        return self.has_class("-map")

    def focus(self, scroll_visible: bool = True, from_app_focus: bool = False) -> Self:
        """The keyboard goes to the table or to the map, whichever is shown."""
        (self._map if self._map is not None and self._map_is_shown else self.query_one(DataTable)).focus()
        return self

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys of the map and of the table are offered where these are shown."""
        if action == "map":
            return self._map is not None
        return action not in _KEYS or self._map_is_shown == (action != "sort")

    def action_map(self) -> None:
        """The map in place of the table, or the table again, at the same rank."""
        if self._map is None:
            return
        self.toggle_class("-map")
        rows = self.query_one(DataTable)
        ranks = [self._ranks[at].rank for at in self._shown]
        if self._map_is_shown:
            if 0 < rows.cursor_row < len(ranks):  # the first row is where the table starts, the map at the latest rank
                self._map.show_rank(ranks[rows.cursor_row])
            self.show_cell()
        else:
            place = ranks.index(self._map.rank) if self._map.rank in ranks else rows.cursor_row
            self.call_after_refresh(rows.move_cursor, row=place)
            self._show_row(place)
        self.call_after_refresh(self.focus)
        self.refresh_bindings()

    def action_regroup(self) -> None:
        """Group the map by something else."""
        if self._map is not None:
            self._map.regroup()
            self.show_cell()

    def action_next_late(self) -> None:
        """Go to the next late rank of the map."""
        if self._map is not None:
            self._map.next_late()

    def action_sort(self) -> None:
        """By the next column."""
        places = [-1, *self._kept]
        self._by = places[(places.index(self._by) + 1) % len(places)]
        self._fill()

    def find(self, words: str) -> str:
        """Show only rows with these words; all without words. On the map, go to the next rank that has them."""
        if self._map is not None and self._map_is_shown:
            return self._map.find(words)
        self._words = words
        self._fill()
        return f"{len(self._shown):,} of {len(self._rows):,}" if words else ""

    def _fill(self) -> None:
        """The rows that have the words, in order."""
        low = self._words.lower()
        self._shown = [at for at, row in enumerate(self._rows) if any(low in str(cell).lower() for cell in row)]
        self._shown.sort(key=lambda at: self._ranks[at].rank != self._late)
        if self._by >= 0:
            self._shown.sort(key=lambda at: _size(self._rows[at][self._by]))
        rows = self.query_one(DataTable)
        rows.clear()
        for at in self._shown:
            row = []
            for i in self._kept:
                row.append(Text(_cell(self._rows[at][i]), justify="right" if COLUMNS[i].right else "left"))
                if self._heat and COLUMNS[i].heading == _FIRST[-1]:
                    row.append(Text(self._heat.get(self._ranks[at].rank, ""), hue("red")))
            if self._ranks[at].rank == self._late:
                row[0] = Text(f"▶{row[0].plain}", style_of("error"), justify="right")
            rows.add_row(*row)
        self._show_row(0)

    def _lines_of(self, place: int) -> Layout:
        return lambda width: self._details(place, width)

    def _details(self, place: int, width: int) -> Iterator[Line]:
        is_late = place < len(self._shown) and self._ranks[self._shown[place]].rank == self._late
        if place < len(self._shown):
            at = self._shown[place]
            rank = self._ranks[at]
            yield line(f"Rank {rank.rank}", "strong")
            yield from labelled("Late", str(shown(lambda: lateness(rank, why=not is_late))), width)
            if is_late:
                yield from labelled("Verdict", latest(self._report), width, role="warning")
            yield from self._steps(rank.rank, width)
            if host := rank.known("host"):
                yield from labelled("Host", host, width)
            device = str(rank.known("device_name") or "not named in the trace")
            yield from labelled("Device", f"{device} ({self._rows[at][_DEVICE]})", width)
            yield from labelled("File", rank.source, width)
            for column, cell in zip(COLUMNS, self._rows[at], strict=True):
                if isinstance(cell, Hole):
                    yield from labelled(column.heading, str(cell), width)
        elif self._words:
            yield from wrapped(f"No row has '{self._words}'.", width, role="warning")
        if any(isinstance(row[i], Hole) for row in self._rows for i in self._kept):
            yield from wrapped("? not measured: select the row to see why.", width, role="dim")
        if not is_late:
            yield from wrapped(latest(self._report), width)
        for remark in rank_remarks(self._report):
            yield from wrapped(remark, width, role="warning")
        if self._rows:
            yield from wrapped(words(self._report, self._rows), width, role="dim")
        if self._heat:
            yield from wrapped(_heat_words(self._report), width, role="dim")

    def _steps(self, rank: int, width: int) -> Iterator[Line]:
        """The time of each step of a rank."""
        if self._run is not None:
            measured = self._report.measured
            windows = step_history(self._run, measured, rank)
            recorded = measured.step.basis == "untraced"
            yield from step_columns(windows, width, recorded=recorded, rank=rank, rows=_ROWS)
            yield BLANK


def _cell(cell: Cell) -> str:
    """A cell as it fits: of long words both ends."""
    text = "?" if isinstance(cell, Hole) else visible(cell)
    return both_ends(text)


def _size(cell: Cell) -> tuple[int, float, str]:
    """The largest first; words after numbers, holes last."""
    if isinstance(cell, Hole):
        return 2, 0.0, ""
    number = _NUMBER.match(cell)
    return (0, -float(number[0].replace(",", "")), "") if number else (1, 0.0, cell)


def _lags(report: Report) -> dict[int, list[int]]:
    """By rank, how late it comes in each step; of ranks of which that is known."""
    arrivals = ((rank.rank, rank.known("arrival")) for rank in report.measured.ranks)
    return {rank: [step.lag_ns for step in arrival.steps] for rank, arrival in arrivals if arrival is not None}


def _heat_of(report: Report) -> dict[int, str]:
    """By rank, a cell for each step or few steps, the higher the later; empty where no rank is ever late."""
    lags = _lags(report)
    most = max((lag for rank_lags in lags.values() for lag in rank_lags), default=0)
    return {rank: heat(rank_lags, most) for rank, rank_lags in lags.items()} if most and len(lags) > 1 else {}


def _heat_words(report: Report) -> str:
    lags = _lags(report)
    most, steps = (
        max(lag for rank_lags in lags.values() for lag in rank_lags),
        max(len(rank_lags) for rank_lags in lags.values()),
    )
    each = "each step" if steps <= HEAT_CELLS else f"the worst of {several(-(-steps // HEAT_CELLS), 'step')} or so"
    return f"By step: one cell for {each}; a full one is {ns_as_ms(most)} ms late."

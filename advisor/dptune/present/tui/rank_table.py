"""The third tab: a row per rank and device, and what is known of the one under the cursor."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Container
from textual.widgets import DataTable

from dptune.advice import Report
from dptune.present.amounts import Hole, shown
from dptune.present.lines import Line, labelled, line, wrapped
from dptune.present.ranks import COLUMNS, WORDS, lateness, rank_of_row, rank_remarks, rank_rows, straggler
from dptune.present.table import absent_throughout
from dptune.present.tui.pane import Layout, Pane
from dptune.present.visible import visible


class RankTable(Container):
    """The table above, the words below."""

    DEFAULT_CSS = """
    RankTable { layout: vertical; }
    RankTable DataTable { height: 1fr; }
    RankTable Pane { height: 40%; border: round $primary; }
    RankTable Pane:focus { border: round $accent; }
    """

    def __init__(self, report: Report) -> None:
        super().__init__(id="ranks")
        self._report = report
        self._rows = list(rank_rows(report))
        self._ranks = rank_of_row(report)
        absent = absent_throughout(self._rows) if self._rows else {}
        self._kept = [i for i in range(len(COLUMNS)) if i not in absent]

    def compose(self) -> ComposeResult:
        """Table, then words."""
        yield DataTable(id="rank-rows", cursor_type="row", zebra_stripes=True)
        pane = Pane(self._lines_of(0), id="rank-words")
        pane.border_title = "The rank under the cursor"
        yield pane

    def on_mount(self) -> None:
        """Fill the table; a column that no rank has is named in the words instead."""
        rows = self.query_one(DataTable)
        for i in self._kept:
            rows.add_column(Text(COLUMNS[i].heading))
        for row in self._rows:
            cells = ((row[i], "right" if COLUMNS[i].right else "left") for i in self._kept)
            rows.add_row(*(Text(_cell(cell), justify=side) for cell, side in cells))  # type: ignore[arg-type]

    @on(DataTable.RowHighlighted)
    def show_rank(self, event: DataTable.RowHighlighted) -> None:
        """Show what is known of the row under the cursor."""
        self.query_one(Pane).show(self._lines_of(event.cursor_row))

    def _lines_of(self, place: int) -> Layout:
        return lambda width: self._words(place, width)

    def _words(self, place: int, width: int) -> Iterator[Line]:
        if place < len(self._rows):
            rank = self._ranks[place]
            yield line(f"Rank {rank.rank}", "strong")
            yield from labelled("File", rank.source, width)
            yield from labelled("Device", str(rank.known("device_name") or "its name is not in the trace"), width)
            yield from labelled("Comes late", str(shown(lambda: lateness(rank))), width)
            for column, cell in zip(COLUMNS, self._rows[place], strict=True):
                if isinstance(cell, Hole):
                    yield from labelled(column.heading, str(cell), width)
        if any(isinstance(row[i], Hole) for row in self._rows for i in self._kept):
            yield from wrapped("? was not measured: go to its row to read why.", width, role="dim")
        yield from wrapped(straggler(self._report.measured), width)
        for told in rank_remarks(self._report):
            yield from wrapped(told, width, role="warning")
        yield from wrapped(WORDS, width, role="dim")


def _cell(cell: str | Hole) -> str:
    return "?" if isinstance(cell, Hole) else visible(cell)

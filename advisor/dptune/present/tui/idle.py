"""The idle tab: the longest gaps, each to be shown in the timeline, and below them copies and the input."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container
from textual.widgets import DataTable

from dptune.advice import Report
from dptune.measured import GapFigures
from dptune.present.amounts import Hole, number, percent, shown
from dptune.present.lines import BLANK, Line, labelled, wrapped
from dptune.present.sections.gaps import ahead, around, causes
from dptune.present.sections.traffic import copies, data_loading
from dptune.present.tui.pane import FRAMED, Pane
from dptune.present.tui.row_table import RowTable
from dptune.present.tui.target import GoTo
from dptune.present.visible import visible

_COLUMNS = ("ms", "rank", "step", "why the device was idle")


class Gaps(RowTable):
    """A table in which Enter means: show that gap in the timeline."""

    BINDINGS: ClassVar = [
        Binding(
            "enter",
            "select_cursor",
            "In the timeline",
            id="place.show",
            tooltip="Show the gap in the timeline",
        ),
    ]


class Idle(Container):
    """Table of gaps, then words."""

    DEFAULT_CSS = """
    Idle { layout: vertical; }
    Idle DataTable { height: auto; max-height: 40%; }
    Idle Pane { height: 1fr; }
    """

    def __init__(self, report: Report) -> None:
        super().__init__(id="idle-parts")
        self._report = report
        self._gaps: list[GapFigures] = report.measured.known("gaps") or []

    def compose(self) -> ComposeResult:
        """The table, then the words."""
        self._table = Gaps(id="gap-list")
        self._table.border_title = "Longest gaps (traced times)"
        share = shown(lambda: self._report.measured.step_account.share("idle_ns"), percent)
        self._table.border_subtitle = "" if isinstance(share, Hole) else f"devices idle for {share} of the step (mean)"
        yield self._table
        self._words = Pane(lambda width: self._details(0, width), id="idle-text", classes=FRAMED)
        self._words.border_title = "Selected gap"
        yield self._words

    def on_mount(self) -> None:
        """Fill the table."""
        for heading in _COLUMNS:
            self._table.add_column(Text(heading))
        for gap in self._gaps:
            figures = (number(gap.length_ns / 1e6), str(gap.rank), str(gap.step))
            self._table.add_row(*(Text(figure, justify="right") for figure in figures), Text(visible(causes(gap))))

    @on(DataTable.RowHighlighted)
    def show_gap(self, event: DataTable.RowHighlighted) -> None:
        """Show what lies around the one under the cursor."""
        at = event.cursor_row
        self._words.show(lambda width: self._details(at, width))

    @on(DataTable.RowSelected)
    def show_in_timeline(self) -> None:
        """Go there."""
        at = self._table.cursor_row
        if at < len(self._gaps):
            gap = self._gaps[at]
            self.post_message(GoTo(gap.rank, gap.start_ns, gap.start_ns + gap.length_ns))

    def find(self, words: str) -> str:
        """Find words below the table."""
        return self._words.find(words)

    def _details(self, at: int, width: int) -> Iterator[Line]:
        if at < len(self._gaps):
            for label, text in around(self._gaps[at]):
                yield from labelled(label.capitalize(), text, width)
        else:
            why = self._report.measured.missing.get("gaps")
            yield from wrapped("No gaps found." if why is None else f"Not known: {visible(why)}", width)
        if lines := list(ahead(self._report.measured, width)):
            yield from (BLANK, *lines)
        for section in (copies, data_loading):
            yield from section(self._report, width)

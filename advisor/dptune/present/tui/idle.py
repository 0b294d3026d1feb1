"""The idle tab: the longest gaps, each to be shown in the timeline, and below them copies and the input."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Container
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from dptune.advice import Report
from dptune.measured import GapFigures
from dptune.present.lines import BLANK, Line, line, wrapped
from dptune.present.sections.gaps import ahead, around, where
from dptune.present.sections.traffic import copies, data_loading
from dptune.present.tui.pane import FRAMED, Pane
from dptune.present.tui.target import GoTo, Places
from dptune.present.visible import visible


class Idle(Container):
    """List of gaps, then words."""

    DEFAULT_CSS = """
    Idle { layout: vertical; }
    Idle OptionList { height: 40%; }
    Idle Pane { height: 1fr; }
    """

    def __init__(self, report: Report) -> None:
        super().__init__(id="idle-parts")
        self._report = report
        self._gaps: list[GapFigures] = report.measured.known("gaps") or []

    def compose(self) -> ComposeResult:
        """The list, then the words."""
        why = self._report.measured.missing.get("gaps")
        none = "No gaps found." if why is None else f"Not known: {visible(why)}"
        options = [Option(Text(where(gap))) for gap in self._gaps] or [Option(Text(none, "dim"))]
        self._list = Places(*options, id="gap-list", markup=False, classes=FRAMED)
        self._list.border_title = "Longest gaps (traced times): Enter opens one in the timeline"
        yield self._list
        self._words = Pane(lambda width: self._details(0, width), id="idle-text", classes=FRAMED)
        yield self._words

    @on(OptionList.OptionHighlighted)
    def show_gap(self, event: OptionList.OptionHighlighted) -> None:
        """Show what lies around the one under the cursor."""
        at = event.option_index
        self._words.show(lambda width: self._details(at, width))

    @on(OptionList.OptionSelected)
    def show_in_timeline(self) -> None:
        """Go there."""
        at = self._list.highlighted or 0
        if at < len(self._gaps):
            gap = self._gaps[at]
            self.post_message(GoTo(gap.rank, gap.start_ns, gap.start_ns + gap.length_ns))

    def find(self, words: str) -> str:
        """Find words below the list."""
        return self._words.find(words)

    def _details(self, at: int, width: int) -> Iterator[Line]:
        if at < len(self._gaps):
            yield line("The gap under the cursor", "strong")
            yield from wrapped(around(self._gaps[at]), width, "  ")
            yield BLANK
        yield from ahead(self._report.measured, width)
        for section in (copies, data_loading):
            yield from section(self._report, width)

"""The second tab: a list of advice, and the card of the one that is chosen."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Container
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from dptune.advice import Advice, Report
from dptune.present.advice import KINDS, body, nothing_to_say, other_proofs, proven, tag
from dptune.present.lines import BLANK, Line, line, wrapped
from dptune.present.skipped import skipped
from dptune.present.tui.pane import Layout, Pane
from dptune.present.visible import visible

_SHORT = {"time": "saves time", "risk": "risk", "convergence": "learning"}


class Cards(Container):
    """List and card: beside each other where there is room, else one above the other."""

    DEFAULT_CSS = """
    Cards { layout: vertical; }
    Cards OptionList { height: 40%; border: round $primary; }
    Cards Pane { height: 1fr; border: round $primary; }
    Cards OptionList:focus, Cards Pane:focus { border: round $accent; }
    """

    def __init__(self, report: Report) -> None:
        super().__init__(id="cards")
        self._report = report
        # In the order of the kinds, each ranked within itself.
        self._advice = [one for kind in KINDS for one in report.advice if one.kind == kind]

    def compose(self) -> ComposeResult:
        """The list, then the card."""
        options = [Option(_entry(one)) for one in self._advice]
        last = f"{len(self._report.skipped)} rules could not run, {len(self._report.quiet)} found nothing"
        if not self._advice:
            last = f"No advice; {last}"
        self._list = OptionList(*options, Option(Text(last, style="dim")), id="advice-list", markup=False)
        self._list.border_title = "Advice: up and down to choose"
        yield self._list
        self._card = Pane(self._lines_of(0), id="advice-card")
        self._card.border_title = "Tab, then up and down to scroll"
        yield self._card

    @on(OptionList.OptionHighlighted)
    def show_card(self, event: OptionList.OptionHighlighted) -> None:
        """Show what the cursor is on."""
        self._card.show(self._lines_of(event.option_index))

    @property
    def chosen(self) -> Advice | None:
        """The advice under the cursor; None on the last entry."""
        place = self._list.highlighted or 0
        return self._advice[place] if place < len(self._advice) else None

    def _lines_of(self, place: int) -> Layout:
        if place < len(self._advice):
            return lambda width: _card(self._advice[place], self._report, width)
        return lambda width: _rest(self._report, width)


def _entry(one: Advice) -> Text:
    text = Text(f"{one.severity}, {_SHORT[one.kind]}: {visible(one.rule)}\n", style="bold")
    return text.append(visible(one.title), style="not bold")


def _card(one: Advice, report: Report, width: int) -> Iterator[Line]:
    yield line(tag(one), "dim")
    yield from wrapped(one.title, width, role="strong")
    yield from proven(report, one.rule, width)
    yield BLANK
    yield from body(one, report.measured, width, fold_code=True)


def _rest(report: Report, width: int) -> Iterator[Line]:
    if not report.advice:
        yield from wrapped(nothing_to_say(report), width)
    yield from other_proofs(report, width)
    yield from skipped(report, width)

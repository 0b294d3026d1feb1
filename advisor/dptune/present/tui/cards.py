"""The second tab: a list of advice, and the card of the one that is chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from dptune.advice import Advice, Evidence, Report
from dptune.errors import DptuneError
from dptune.present.amounts import several
from dptune.present.lines import BLANK, Line, line, wrapped
from dptune.present.sections.advice import body, nothing_to_say, other_proofs, proven, sections, tag
from dptune.present.sections.skipped import skipped
from dptune.present.tui.page import PageScreen
from dptune.present.tui.pane import Layout, Pane, painted
from dptune.present.tui.target import GoTo, Places
from dptune.present.visible import visible

_SHORT = {"time": "saves time", "risk": "risk", "convergence": "learning"}
_ALL = 10_000  # columns: the text of a card, unfolded, to find words in
_ORDERS: dict[str, Callable[[Advice], tuple[float | str, ...]]] = {
    "as ranked": lambda advised: (),
    "by saving": lambda one: (-(one.saves.expected_share if one.saves else 0.0),),
    "by code": lambda one: (one.rule,),
}


class Cards(Container):
    """List and card: beside each other where there is room, else one above the other."""

    DEFAULT_CSS = """
    Cards { layout: vertical; }
    Cards OptionList { height: 40%; border: round $primary; }
    Cards Pane { height: 1fr; border: round $primary; }
    Cards OptionList:focus, Cards Pane:focus { border: round $accent; }
    """
    BINDINGS: ClassVar = [
        Binding("w", "why", "Why", id="advice.why", tooltip="What the rule measures, and its thresholds"),
        Binding("y", "app.copy", "Copy code", id="advice.copy", tooltip="Copy the code of the selected recommendation"),
        Binding("s", "sort", "Sort", id="advice.sort", tooltip="Change the sort order", show=False),
    ]

    def __init__(self, report: Report, explain: Callable[[str], Layout]) -> None:
        super().__init__(id="cards")
        self._report, self._explain = report, explain
        self._ranked = [card for _, cards in sections(report.advice) for card in cards]
        self._advice = self._ranked
        self._order, self._words = "as ranked", ""
        self._looked_at = 0

    def compose(self) -> ComposeResult:
        """The list, then the card."""
        self._list = Places(*self._entries(), id="advice-list", markup=False)
        yield self._list
        self._card = Pane(self._lines_of(0), id="advice-card")
        self._card.border_title = "Tab, then up and down to scroll"
        yield self._card
        self._title()

    @on(OptionList.OptionHighlighted)
    def show_card(self, event: OptionList.OptionHighlighted) -> None:
        """Show what the cursor is on."""
        self._looked_at = 0
        self._card.show(self._lines_of(event.option_index))

    @on(OptionList.OptionSelected)
    def show_evidence(self) -> None:
        """Show where the evidence was seen; the next place when asked again."""
        places = [evidence for evidence in self.chosen.evidence if evidence.start_ns is not None] if self.chosen else []
        if not places:
            words = "Based on figures over all steps, not on one place. Key 6 shows a step."
            self.app.notify(words, markup=False, timeout=4)
            return
        self.post_message(_going(places[self._looked_at % len(places)]))
        self._looked_at += 1

    @property
    def chosen(self) -> Advice | None:
        """The advice under the cursor; None on the last entry."""
        place = self._list.highlighted or 0
        return self._advice[place] if place < len(self._advice) else None

    def find(self, words: str) -> str:
        """List only the advice with these words anywhere on its card; all without words."""
        self._words = words
        self._list_anew()
        return f"{len(self._advice)} of {len(self._ranked)}" if words else ""

    def action_sort(self) -> None:
        """The next order."""
        names = list(_ORDERS)
        self._order = names[(names.index(self._order) + 1) % len(names)]
        self._list_anew()

    def action_why(self) -> None:
        """The page of the rule."""
        if chosen := self.chosen:
            try:
                page = self._explain(chosen.rule)
            except DptuneError as error:
                self.app.notify(f"{error.message}.", markup=False, timeout=4)
                return
            self.app.push_screen(PageScreen(f"{chosen.rule} (Escape closes)", page))

    def _list_anew(self) -> None:
        """Fill the list by order and words."""
        found = sorted(self._ranked, key=_ORDERS[self._order])
        self._advice = [advice for advice in found if self._words.lower() in self._all_words(advice)]
        self._list.clear_options()
        self._list.add_options(self._entries())
        self._list.highlighted = 0
        self._card.show(self._lines_of(0))
        self._title()

    def _all_words(self, advice: Advice) -> str:
        return painted(_card(advice, self._report, _ALL)).plain.lower() if self._words else ""

    def _title(self) -> None:
        only = f", with '{visible(self._words)}'" if self._words else ""
        self._list.border_title = Text(f"Advice {self._order}{only}")

    def _entries(self) -> list[Option]:
        could_not = sum(not skip.set_aside for skip in self._report.skipped)
        lacking = f"{several(could_not, 'rule')} could not run, " if could_not else ""
        last = f"{lacking}{several(len(self._report.quiet), 'rule')} found nothing"
        if not self._report.advice:
            last = f"No advice; {last}"
        left_out = len(self._ranked) - len(self._advice)
        if left_out:
            last = f"{several(left_out, 'recommendation')} without this text; {last}"
        return [*(Option(_entry(advice)) for advice in self._advice), Option(Text(last, style="dim"))]

    def _lines_of(self, place: int) -> Layout:
        if place < len(self._advice):
            return lambda width: _card(self._advice[place], self._report, width)
        return lambda width: _rest(self._report, width)


def _entry(advice: Advice) -> Text:
    unsure = ", low confidence" if advice.confidence == "low" else ""
    text = Text(f"{advice.impact} impact{unsure}, {_SHORT[advice.kind]}: {visible(advice.rule)}\n", style="bold")
    return text.append(visible(advice.title), style="not bold")


def _going(evidence: Evidence) -> GoTo:
    start = evidence.start_ns or 0
    return GoTo(evidence.rank or 0, start, start if evidence.end_ns is None else evidence.end_ns)


def _card(advice: Advice, report: Report, width: int) -> Iterator[Line]:
    yield line(tag(advice), "dim")
    yield from wrapped(advice.title, width, role="strong")
    yield from proven(report, advice.rule, width)
    yield BLANK
    yield from body(advice, report.measured, width, fold_code=True)


def _rest(report: Report, width: int) -> Iterator[Line]:
    if not report.advice:
        yield from wrapped(nothing_to_say(report), width)
    yield from other_proofs(report, width)
    yield from skipped(report, width)

"""The second tab: a table of advice, and the card of the row under the cursor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container
from textual.widgets import DataTable

from dptune.advice import Advice, Evidence, Report
from dptune.errors import DptuneError
from dptune.present.amounts import several
from dptune.present.first_screen import fix_of
from dptune.present.lines import BLANK, Line, line, wrapped
from dptune.present.sections.advice import IMPACT_ROLES, body, nothing_to_say, other_proofs, sections, tag
from dptune.present.sections.skipped import skipped
from dptune.present.tui.page import PageScreen
from dptune.present.tui.pane import FRAMED, Layout, Pane, painted, style_of
from dptune.present.tui.row_table import RowTable
from dptune.present.tui.target import GoTo, Try
from dptune.present.visible import visible

_COLUMNS = ("fix", "where", "saves", "confidence", "results")
_LONGEST, _LEAST = 44, 16  # letters of a name in the table
_FRAME = 2  # columns
_ALL = 10_000  # columns: the text of a card, unfolded, to find words in
_ORDERS: dict[str, Callable[[Advice], tuple[float | str, ...]]] = {
    "as ranked": lambda advised: (),
    "by saving": lambda advised: (-(advised.saves.expected_share if advised.saves else 0.0),),
    "by code": lambda advised: (advised.rule,),
}


class _Rows(RowTable):
    """A table in which Enter means: read the card."""

    BINDINGS: ClassVar = [
        Binding("enter", "select_cursor", "Card", id="advice.card", tooltip="Move the focus to the card"),
    ]


class Cards(Container):
    """The table above, the card below."""

    DEFAULT_CSS = """
    Cards { layout: vertical; }
    Cards DataTable { height: auto; max-height: 40%; }
    Cards Pane { height: 1fr; }
    """
    BINDINGS: ClassVar = [
        Binding(
            "e",
            "evidence",
            "Evidence",
            id="advice.evidence",
            tooltip="Show the evidence in the timeline; again: the next",
        ),
        Binding("w", "why", "Why", id="advice.why", tooltip="What the rule measures, and its thresholds"),
        Binding(
            "y", "copy_code", "Copy code", id="advice.copy", tooltip="Copy the code of the selected recommendation"
        ),
        Binding("p", "predict", "What if", id="advice.predict", tooltip="Set the recommendation on the what-if tab"),
        Binding("s", "sort", "Sort", id="advice.sort", tooltip="Change the sort order", show=False),
    ]

    def __init__(
        self, report: Report, explain: Callable[[str], Layout], predictable: Callable[[Advice], bool] = lambda _: False
    ) -> None:
        """`explain`: the page of a rule; `predictable`: whether the what-if tab has the settings of an advice."""
        super().__init__(id="cards")
        self._report, self._explain, self._predictable = report, explain, predictable
        self._ranked = [card for _, cards in sections(report.advice) for card in cards]
        self._advice = self._ranked
        fixes = [fix_of(advice, report.verified) for advice in self._ranked]
        self._columns = [heading for heading in _COLUMNS if heading != "where" or any(fix.where for fix in fixes)]
        self._order, self._words = "as ranked", ""
        self._looked_at = self._width = 0

    def compose(self) -> ComposeResult:
        """The table, then the card."""
        self._table = _Rows(id="advice-list")
        yield self._table
        self._card = Pane(self._lines_of(0), id="advice-card", classes=FRAMED)
        self._card.border_title = "Recommendation"
        yield self._card

    def on_mount(self) -> None:
        """Fill the table."""
        self._fill()

    def on_resize(self) -> None:
        """Names are cut to what the screen has room for; a tab that is shown again keeps what it shows."""
        if self.size.width in (0, self._width):
            return
        self._width = self.size.width
        at = self._table.cursor_row
        self._fill()
        self._table.move_cursor(row=at)

    @on(DataTable.RowHighlighted)
    def show_card(self, event: DataTable.RowHighlighted) -> None:
        """Show what the cursor is on."""
        self._looked_at = 0
        self._card.show(self._lines_of(event.cursor_row))
        self.refresh_bindings()

    @on(DataTable.RowSelected)
    def read_card(self) -> None:
        """Let the arrow keys scroll the card."""
        self._card.focus()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys of a recommendation are offered where the cursor is on one that has what they show."""
        chosen = self.chosen
        offered = {
            "evidence": bool(chosen and _places(chosen)),
            "why": chosen is not None,
            "predict": chosen is not None and self._predictable(chosen),
            "copy_code": bool(chosen and any(change.paste for change in chosen.changes)),
        }
        return offered.get(action, True)

    def action_evidence(self) -> None:
        """Show where the evidence was seen; the next place when asked again."""
        places = _places(self.chosen) if self.chosen else []
        if not places:
            words = "Based on figures over all steps, not on one place. Key 6 shows a step."
            self.app.notify(words if self.chosen else "No recommendation is selected.", markup=False, timeout=4)
            return
        self.post_message(_going(places[self._looked_at % len(places)]))
        self._looked_at += 1

    def action_predict(self) -> None:
        """Set the recommendation on the what-if tab."""
        if self.chosen:
            self.post_message(Try(self.chosen))

    async def action_copy_code(self) -> None:
        """Copy the code of the recommendation."""
        await self.app.run_action("copy")

    @property
    def chosen(self) -> Advice | None:
        """The advice under the cursor; None on the last row."""
        place = self._table.cursor_row
        return self._advice[place] if place < len(self._advice) else None

    def find(self, words: str) -> str:
        """List only the advice with these words anywhere on its card; all without words."""
        self._words = words
        self._fill()
        return f"{len(self._advice)} of {len(self._ranked)}" if words else ""

    def action_sort(self) -> None:
        """The next order."""
        names = list(_ORDERS)
        self._order = names[(names.index(self._order) + 1) % len(names)]
        self._fill()

    def action_why(self) -> None:
        """The page of the rule."""
        if chosen := self.chosen:
            try:
                page = self._explain(chosen.rule)
            except DptuneError as error:
                self.app.notify(f"{error.message}.", markup=False, timeout=4)
                return
            self.app.push_screen(PageScreen(f"{chosen.rule} (Escape closes)", page))

    def _fill(self) -> None:
        """Fill the table by order and words."""
        found = sorted(self._ranked, key=_ORDERS[self._order])
        self._advice = [advice for advice in found if self._words.lower() in self._all_words(advice)]
        rows = self._fitting([_cells(advice, self._report) for advice in self._advice])
        self._table.clear(columns=True)
        for heading in self._columns:
            self._table.add_column(Text(heading), width=max(len(heading), *(row[heading].cell_len for row in rows)))
        for row in rows:
            self._table.add_row(*(row[heading] for heading in self._columns))
        only = f", with '{visible(self._words)}'" if self._words else ""
        self._table.border_title = Text(f"Recommendations {self._order}{only}")
        self._table.border_subtitle = Text(self._rest_in_short())
        self._card.show(self._lines_of(0))

    def _fitting(self, rows: list[dict[str, Text]]) -> list[dict[str, Text]]:
        """The rows and the last one, the names cut to what all other columns leave of the screen."""
        others = sum(max(len(heading), *(row[heading].cell_len for row in rows), 0) for heading in self._columns[1:])
        room = self.size.width - _FRAME - 2 * self._table.cell_padding * len(self._columns) - others
        for row in rows:
            row["fix"].truncate(min(max(room, _LEAST), _LONGEST), overflow="ellipsis")
        return [
            *rows,
            {heading: Text("" if at else "all other rules") for at, heading in enumerate(self._columns)},
        ]

    def _all_words(self, advice: Advice) -> str:
        return painted(_card(advice, self._report, _ALL)).plain.lower() if self._words else ""

    def _rest_in_short(self) -> str:
        """What is not in the table, in words."""
        could_not = sum(skip.could_not_run for skip in self._report.skipped)
        needing = sum(skip.needs_recording for skip in self._report.skipped)
        left_out = len(self._ranked) - len(self._advice)
        words = [
            f"{several(left_out, 'recommendation')} without this text" if left_out else "",
            "no recommendations" if not self._report.advice else "",
            f"{several(could_not, 'rule')} could not run" if could_not else "",
            f"{several(needing, 'rule')} need{'s' if needing == 1 else ''} a recording" if needing else "",
            f"{several(len(self._report.quiet), 'rule')} found nothing",
        ]
        return ", ".join(filter(None, words))

    def _lines_of(self, place: int) -> Layout:
        if place < len(self._advice):
            return lambda width: _card(self._advice[place], self._report, width)
        return lambda width: _rest(self._report, width)


def _places(advice: Advice) -> list[Evidence]:
    """The evidence that was seen at one place of the run."""
    return [evidence for evidence in advice.evidence if evidence.start_ns is not None]


def _cells(advice: Advice, report: Report) -> dict[str, Text]:
    """A row by its columns; what is of low confidence has no color."""
    fix = fix_of(advice, report.verified)
    role = style_of(IMPACT_ROLES[advice.impact] if advice.confidence != "low" else "plain")
    rest = {"where": fix.where, "saves": fix.saves, "confidence": fix.confidence, "results": fix.results}
    first = Text(visible(f"{fix.rule} {fix.slug}"), role)
    return {"fix": first, **{heading: Text(visible(cell)) for heading, cell in rest.items()}}


def _going(evidence: Evidence) -> GoTo:
    start = evidence.start_ns or 0
    return GoTo(evidence.rank or 0, start, start if evidence.end_ns is None else evidence.end_ns)


def _card(advice: Advice, report: Report, width: int) -> Iterator[Line]:
    yield line(tag(advice), "dim")
    yield from wrapped(advice.title, width, role="strong")
    yield BLANK
    yield from body(advice, report, width, fold_code=True)


def _rest(report: Report, width: int) -> Iterator[Line]:
    if not report.advice:
        yield from wrapped(nothing_to_say(report), width)
    yield from other_proofs(report, width)
    yield from skipped(report, width)

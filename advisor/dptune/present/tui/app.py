"""The full-screen report: tabs over one Report, and over its run where that was read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import ClassVar, Protocol

from rich.text import Text
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding
from textual.containers import Horizontal
from textual.dom import DOMNode
from textual.screen import Screen
from textual.widgets import Static, TabbedContent, TabPane

from dptune.advice import Advice, Report
from dptune.measure.steps.history import step_history
from dptune.present.amounts import several
from dptune.present.first_screen import first_screen, verdict_role
from dptune.present.lines import Line, heading, wrapped
from dptune.present.sections.bandwidth import plot
from dptune.present.sections.links import links
from dptune.present.sections.overlap import overlap
from dptune.present.sections.rulebook import page_of
from dptune.present.sections.traffic import collectives
from dptune.present.tui.advice import Cards
from dptune.present.tui.finder import Finder
from dptune.present.tui.footer import Keys
from dptune.present.tui.help import keys
from dptune.present.tui.idle import Gaps, Idle
from dptune.present.tui.overview import Overview, overview
from dptune.present.tui.page import PageScreen
from dptune.present.tui.palette import DARK, LIGHT
from dptune.present.tui.pane import Pane, style_of
from dptune.present.tui.rank_table import RankTable
from dptune.present.tui.target import GoTo, Try
from dptune.present.tui.timeline import Timeline
from dptune.present.tui.whatif import WhatIfPane
from dptune.present.visible import visible
from dptune.trace.run import Run


class Findable(Protocol):
    """A part of a tab in which words are found; the result is a few words. Without words all are shown."""

    def find(self, words: str) -> str:
        """Go to the next place that has them, or leave out what has not."""


# By what a key asks for: the tab, what of it has the keyboard first, and where words are found.
_PARTS = {
    "overview": ("overview", "#overview-text", "#overview-text"),
    "advice": ("advice", "#advice-list", "#cards"),
    "ranks": ("ranks-tab", "#ranks", "#ranks"),
    "links": ("links", "#links-text", "#links-text"),
    "idle": ("idle", "#gap-list", "#idle-parts"),
    "timeline": ("timeline-tab", "#timeline", "#timeline"),
    "whatif": ("whatif-tab", "#whatif", "#prediction"),
}
_OF_TAB = {tab: name for name, (tab, _, _) in _PARTS.items()}
_WITH_KEYS = (Overview, Cards, RankTable, Gaps, Timeline, WhatIfPane)  # parts of tabs
_COPY = "y"
TOAST_S = 2  # it covers the lines it speaks of
_MANY_RANKS = 1000  # whose number would push the last tab out of 80 columns
_LONGEST_VERDICT = 24  # letters beside the title
_NO_RUN = "Not available: only a report was loaded, not the run."


_TABS = (
    ("1", "overview", "Overview", "Verdict and step time breakdown"),
    ("2", "advice", "Advice", "Recommendations and savings"),
    ("3", "ranks", "Ranks", "Stragglers and waiting"),
    ("4", "links", "Links", "Collectives and link bandwidth"),
    ("5", "idle", "Idle", "Longest gaps, and copies"),
    ("6", "timeline", "Timeline", "All ranks, a rank, two ranks beside each other"),
    ("7", "whatif", "What if", "Change settings, see the predicted step"),
)


class ReportApp(App[None]):
    """Overview, advice, ranks, links, idle time; of a run that was read a timeline, and what if."""

    TITLE = "dptune"
    CSS = """
    #title { height: 1; padding: 0 1; background: $panel; }
    #title Static { text-wrap: nowrap; text-overflow: ellipsis; }
    #subject { width: 1fr; text-style: bold; }
    #verdict { width: auto; margin: 0 0 0 2; }
    TabbedContent { height: 1fr; }
    TabPane { padding: 0; }
    Tab { color: $foreground 75%; }
    Tab.-active, Tab:hover { color: $foreground; }
    FooterKey .footer-key--key { color: $foreground; text-style: bold; }
    .framed { border: round $foreground 30%; border-title-color: $text-muted; border-subtitle-color: $text-muted; }
    .framed:focus, Timeline:focus #lanes, WhatIfPane:focus #dials {
        border: round $border; border-title-color: $text; border-title-style: bold;
    }
    """
    BINDINGS: ClassVar = [
        *(
            Binding(key, f"show('{name}')", title, id=f"show.{name}", tooltip=words, show=False)
            for key, name, title, words in _TABS
        ),
        Binding(_COPY, "copy", "Copy code", id="copy", tooltip="Copy the code or command on this tab", show=False),
        Binding(
            "tab", "app.focus_next", "Next part", id="focus.next", tooltip="Move the focus within the tab", show=False
        ),
        Binding("slash", "find", "Find", id="find", tooltip="Find text on this tab", key_display="/"),
        Binding(
            "ctrl+p",
            "command_palette",
            "Commands",
            id="palette",
            tooltip="Commands by name; themes",
            show=False,
        ),
        Binding("question_mark", "help", "Help", id="help", tooltip="All keys", key_display="?"),
        Binding("q,ctrl+c", "quit", "Quit", id="quit", tooltip="Leave the report"),
    ]

    def __init__(
        self, report: Report, run: Run | None = None, *, paths: Sequence[str] = (), patches: bool = True
    ) -> None:
        """`paths`: the run as it was named; `patches`: whether the recommended change can be applied to the script."""
        super().__init__()
        self.ansi_theme_dark, self.ansi_theme_light = DARK, LIGHT
        self._named, self._patches = paths or report.run.sources, patches
        self._run = run if run is not None and run.ranks else None
        self.animation_level = "none"  # a text that glides is hard to read, and slow over ssh
        self._report = report
        self._history = step_history(run, report.measured) if run is not None else []
        self._searched = ""  # the part in which words are looked for

    def compose(self) -> ComposeResult:
        """Title, tabs, keys."""
        with Horizontal(id="title"):
            yield Static(Text(f"dptune report: {visible(_subject(self._report))}"), id="subject")
            yield Static(_verdict(self._report), id="verdict")
        with TabbedContent(initial="overview"):
            with TabPane("1 Overview", id="overview"):
                yield Overview(self._overview, id="overview-text")
            with TabPane(f"2 Advice ({len(self._report.advice)})", id="advice"):
                yield Cards(self._report, page_of, self._can_predict)
            ranks = len(self._report.measured.ranks)
            with TabPane(f"3 Ranks ({ranks})" if ranks < _MANY_RANKS else "3 Ranks", id="ranks-tab"):
                yield RankTable(self._report, self._run)
            with TabPane("4 Links", id="links"):
                yield Pane(lambda width: _sections(self._report, width, *_LINKS), id="links-text")
            with TabPane("5 Idle", id="idle"):
                yield Idle(self._report)
            if self._run is not None:
                with TabPane("6 Timeline", id="timeline-tab"):
                    yield Timeline(self._run, self._report)
                with TabPane("7 What if", id="whatif-tab"):
                    yield WhatIfPane(self._run, self._report, self._named)
        yield Finder()
        yield Keys(show_command_palette=False)

    def _overview(self, width: int) -> Iterator[Line]:
        return overview(self._report, width, self._history, self._patches)

    def on_mount(self) -> None:
        """Let the arrow keys scroll the overview at once."""
        self.action_show("overview")

    def action_show(self, name: str) -> None:
        """Go to a tab, with the keyboard in its first part."""
        tab, first, _ = _PARTS[name]
        if not self.query(f"#{tab}"):
            self.notify(_NO_RUN, markup=False, timeout=TOAST_S)
            return
        self.query_one(TabbedContent).active = tab
        self.query_one(first).focus()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The evidence of the first recommendation is offered where there is one."""
        return action != "evidence" or bool(self._report.advice)

    def on_go_to(self, where: GoTo) -> None:
        """Show a stretch of a rank's time in the timeline."""
        self.action_show("timeline")
        if self._run is not None:
            self.call_after_refresh(self.query_one(Timeline).go_to, where.rank, where.start_ns, where.end_ns)

    def on_try(self, asked: Try) -> None:
        """Set a recommendation on the what-if tab."""
        self.query_one(WhatIfPane).open(asked.advice)
        self.action_show("whatif")

    def _can_predict(self, advice: Advice) -> bool:
        return any(pane.can_predict(advice) for pane in self.query(WhatIfPane))

    def action_evidence(self) -> None:
        """Show where the evidence of the first recommendation was seen."""
        self.query_one(Cards).action_evidence()

    def action_find(self) -> None:
        """Ask for words."""
        self.query_one(Finder).open()

    def on_finder_submitted(self, asked: Finder.Submitted) -> None:
        """Find them on the tab that is open; on one that was searched before, none any more."""
        if self._searched not in ("", self._parts[2]):
            self._find("", self._searched)
        self._searched = self._parts[2]
        self.query_one(Finder).say(self._find(asked.words, self._searched))

    def on_finder_closed(self) -> None:
        """Find none any more where words were looked for, and go back to the tab."""
        self._find("", self._searched or self._parts[2])
        self._searched = ""
        self.query_one(self._parts[1]).focus()

    def _find(self, words: str, where: str) -> str:
        part: Findable = self.query_one(where)  # type: ignore[assignment]
        return part.find(words)

    @property
    def _parts(self) -> tuple[str, str, str]:
        """Those of the tab that is open."""
        return _PARTS[_OF_TAB[self.query_one(TabbedContent).active]]

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """What the palette offers: what keys do, everywhere and on the tab that is open, and themes."""
        for binding in _declared(self):
            if binding.action.startswith("show(") or binding.action in ("find", "copy", "help", "quit"):
                yield SystemCommand(
                    binding.description,
                    binding.tooltip,
                    lambda action=binding.action: self.call_later(self.run_action, action),
                )
        shown = self.query_one(TabbedContent).active_pane
        for part in shown.query(",".join(widget.__name__ for widget in _WITH_KEYS)) if shown is not None else ():
            for binding in _declared(type(part)):
                if binding.action.startswith("app.") or binding.key == _COPY:
                    continue  # it is there already
                yield SystemCommand(
                    binding.description,
                    binding.tooltip,
                    lambda action=binding.action, part=part: self.call_later(self.run_action, action, part),
                )
        yield from (
            command for command in super().get_system_commands(screen) if command.title in ("Theme", "Screenshot")
        )

    def action_copy(self) -> None:
        """Copy the code of the selected recommendation, or the command that proves what is set."""
        tab, code = self.query_one(TabbedContent).active, ""
        if tab == "advice" and (chosen := self.query_one(Cards).chosen):
            code = "\n".join(change.paste for change in chosen.changes)
        elif tab == "whatif-tab":
            *_, code = ["", *self.query_one(WhatIfPane).commands.values()]
        elif tab == "timeline-tab":
            code = self.query_one(Timeline).command
        if code:
            self.copy_to_clipboard(code)
        said = (
            "Copied, if this terminal allows clipboard access."
            if code
            else "Nothing to copy here: select a recommendation with code on tab 2, or change a setting on tab 7."
        )
        self.notify(said, markup=False, timeout=TOAST_S)

    def action_help(self) -> None:
        """Show every key."""
        parts: dict[str, type[DOMNode]] = {
            "overview": Overview,
            "advice": Cards,
            "ranks": RankTable,
            "idle": Gaps,
            "timeline": Timeline,
            "whatif": WhatIfPane,
        }
        opened = _OF_TAB[self.query_one(TabbedContent).active]
        shown = [name for name in parts if self.query(f"#{_PARTS[name][0]}")]
        titles = {name: title for _, name, title, _ in _TABS}
        here = {titles[name]: _declared(parts[name]) for name in shown if name == opened}
        others = {titles[name]: _declared(parts[name]) for name in shown if name != opened}
        bindings = {**here, "Everywhere": _declared(self), **others}
        self.push_screen(PageScreen("Keys (Escape closes)", lambda width: keys(bindings, width)))


def _declared(part: type[DOMNode] | DOMNode) -> list[Binding]:
    """The keys of a part, as it declares them."""
    return [binding for binding in part.BINDINGS if isinstance(binding, Binding)]


def _plotted(report: Report, width: int) -> Iterator[Line]:
    """The picture of every basis: the run's own collectives, and a sweep."""
    found = report.measured.known("links") or []
    drawn = list(plot(found, width))
    if drawn:
        yield from heading("Bus bandwidth by message size", width)
        yield from drawn


_LINKS = (overlap, collectives, _plotted, links)


def _sections(report: Report, width: int, *sections: Callable[[Report, int], Iterator[Line]]) -> Iterator[Line]:
    """Sections of the text, one below the other; a sentence where none has anything."""
    lines = [line for section in sections for line in section(report, width)]
    yield from lines[1:] if lines and not lines[0] else lines or wrapped("None in this run.", width)


def _verdict(report: Report) -> Text:
    """The verdict in a word or two, and the time of a step, in sight on every tab; a long verdict is on the first."""
    screen = first_screen(report)
    label = visible(screen.label.upper()) if len(screen.label) <= _LONGEST_VERDICT else ""
    return (
        Text()
        .append(label, style_of(verdict_role(screen.label)))
        .append("".join(f"  {rate}" for rate in screen.rates[:1]))
    )


def _subject(report: Report) -> str:
    """The command that was recorded, from its script on, else the file or the folder that was read."""
    sources = report.run.sources
    if report.run.command:
        words = report.run.command.split(" ")
        script, *options = words[next((at for at, word in enumerate(words) if word.endswith(".py")), 0) :]
        return " ".join([PurePath(script).name, *options])
    if not sources:
        return "nothing was read"
    first = PurePath(sources[0])
    if len(sources) == 1:
        return first.name
    return f"{first.parent.name or '.'} ({several(len(sources), 'file')})"

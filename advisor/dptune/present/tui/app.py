"""The full-screen report: tabs over one Report, and over its run where that was read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.widgets import Footer, Static, TabbedContent, TabPane

from dptune.advice import Report
from dptune.present.amounts import several
from dptune.present.gaps import gaps
from dptune.present.lines import Line, wrapped
from dptune.present.links import links
from dptune.present.traffic import collectives, copies, feeding
from dptune.present.tui.cards import Cards
from dptune.present.tui.help import HelpScreen
from dptune.present.tui.overview import overview
from dptune.present.tui.pane import Pane
from dptune.present.tui.rank_table import RankTable
from dptune.present.tui.timeline import Timeline
from dptune.present.tui.whatif import WhatIfPane
from dptune.present.visible import visible
from dptune.trace.run import Run

# By what a key asks for: the tab, and what of it has the keyboard first.
_FIRST = {
    "overview": ("overview", "#overview-text"),
    "advice": ("advice", "#advice-list"),
    "ranks": ("ranks", "#rank-rows"),
    "links": ("links", "#links-text"),
    "idle": ("idle", "#idle-text"),
    "timeline": ("timeline-tab", "#timeline"),
    "whatif": ("whatif-tab", "#whatif"),
}
TOAST_S = 2  # it covers the lines it speaks of


class ReportApp(App[None]):
    """Overview, advice, ranks, links, idle time; of a run that was read a timeline, and what if."""

    TITLE = "dptune"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]  # noqa: RUF012 - as textual declares it
    CSS = """
    #title { height: 1; padding: 0 1; text-style: reverse; }
    TabbedContent { height: 1fr; }
    TabPane { padding: 0; }
    .-wide Cards { layout: horizontal; }
    .-wide Cards OptionList { width: 48; height: 100%; }
    .-wide Cards Pane { width: 1fr; height: 100%; }
    """
    BINDINGS: ClassVar = [
        Binding(
            "1", "show('overview')", "Overview", id="show.overview", tooltip="What is wrong, and where the time goes"
        ),
        Binding("2", "show('advice')", "Advice", id="show.advice", tooltip="What to change, and what it saves"),
        Binding("3", "show('ranks')", "Ranks", id="show.ranks", tooltip="Every rank: who is slow, who waits"),
        Binding(
            "4",
            "show('links')",
            "Links",
            id="show.links",
            tooltip="What was exchanged, and what links carry",
            show=False,
        ),
        Binding("5", "show('idle')", "Idle", id="show.idle", tooltip="The longest gaps, and copies", show=False),
        Binding("6", "show('timeline')", "Timeline", id="show.timeline", tooltip="One step, lane by lane", show=False),
        Binding(
            "7", "show('whatif')", "What if", id="show.whatif", tooltip="Change settings, see the step", show=False
        ),
        Binding("y", "copy", "Copy code", id="copy", tooltip="Copy the code of the chosen advice to the clipboard"),
        Binding(
            "tab", "app.focus_next", "Next part", id="focus.next", tooltip="Go to the next part of the tab", show=False
        ),
        Binding("question_mark", "help", "Help", id="help", tooltip="Every key and what it does", key_display="?"),
        Binding("q,ctrl+c", "quit", "Quit", id="quit", tooltip="Leave; the recording stays where it is"),
    ]

    def __init__(self, report: Report, run: Run | None = None) -> None:
        super().__init__()
        self._run = run if run is not None and run.ranks else None
        self.animation_level = "none"  # a text that glides is hard to read, and slow over ssh
        self._report = report

    def compose(self) -> ComposeResult:
        """Title, tabs, keys."""
        yield Static(Text(f"dptune report: {visible(_subject(self._report))}"), id="title")
        with TabbedContent(initial="overview"):
            with TabPane("1 Overview", id="overview"):
                yield Pane(lambda width: overview(self._report, width), id="overview-text")
            with TabPane(f"2 Advice ({len(self._report.advice)})", id="advice"):
                yield Cards(self._report)
            with TabPane(f"3 Ranks ({len(self._report.measured.ranks)})", id="ranks"):
                yield RankTable(self._report)
            with TabPane("4 Links", id="links"):
                yield Pane(lambda width: _sections(self._report, width, collectives, links), id="links-text")
            with TabPane("5 Idle", id="idle"):
                yield Pane(lambda width: _sections(self._report, width, gaps, copies, feeding), id="idle-text")
            if self._run is not None:
                with TabPane("6 Timeline", id="timeline-tab"):
                    yield Timeline(self._run)
                with TabPane("7 What if", id="whatif-tab"):
                    yield WhatIfPane(self._run, self._report.measured)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Let the arrow keys scroll the overview at once."""
        self.action_show("overview")

    def action_show(self, tab: str) -> None:
        """Go to a tab, with the keyboard in its first part."""
        tab, first = _FIRST[tab]
        if not self.query(f"#{tab}"):
            self.notify("That needs the run itself: this report was read alone.", markup=False, timeout=TOAST_S)
            return
        self.query_one(TabbedContent).active = tab
        self.query_one(first).focus()

    def action_copy(self) -> None:
        """Copy the code of the chosen advice."""
        chosen = self.query_one(Cards).chosen if self.query_one(TabbedContent).active == "advice" else None
        code = "\n".join(change.paste for change in chosen.changes) if chosen else ""
        if code:
            self.copy_to_clipboard(code)
            self.notify("The code is on the clipboard, if this terminal allows it.", markup=False, timeout=TOAST_S)
        else:
            self.notify(
                "There is no code to copy here: choose an advice with code on tab 2.", markup=False, timeout=TOAST_S
            )

    def action_help(self) -> None:
        """Show every key."""
        declared = list(self.BINDINGS)
        if self._run is not None:
            declared += [*Timeline.BINDINGS, *WhatIfPane.BINDINGS]
        bindings = [binding for binding in declared if isinstance(binding, Binding)]
        self.push_screen(HelpScreen([(_keys(binding), binding) for binding in bindings]))


def _sections(report: Report, width: int, *sections: Callable[[Report, int], Iterator[Line]]) -> Iterator[Line]:
    """Sections of the text, one below the other; a sentence where none has anything."""
    told = [line for section in sections for line in section(report, width)]
    yield from told or wrapped("Nothing of that was found in this run.", width)


def _keys(binding: Binding) -> str:
    """Every key of a binding, as a reader says them."""
    return binding.key_display or binding.key.replace(",", ", ")


def _subject(report: Report) -> str:
    """The command that was recorded, else the file or the folder that was read."""
    sources = report.run.sources
    if report.run.command or not sources:
        return report.run.command or "nothing was read"
    first = PurePath(sources[0])
    if len(sources) == 1:
        return first.name
    return f"{first.parent.name or '.'} ({several(len(sources), 'file')})"

"""The full-screen report: three tabs over one Report."""

from __future__ import annotations

from pathlib import PurePath
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.widgets import Footer, Static, TabbedContent, TabPane

from dptune.advice import Report
from dptune.present.amounts import several
from dptune.present.tui.cards import Cards
from dptune.present.tui.help import HelpScreen
from dptune.present.tui.overview import overview
from dptune.present.tui.pane import Pane
from dptune.present.tui.rank_table import RankTable
from dptune.present.visible import visible

TOAST_S = 2  # it covers the lines it speaks of


class ReportApp(App[None]):
    """Overview, advice, ranks."""

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
        Binding("y", "copy", "Copy code", id="copy", tooltip="Copy the code of the chosen advice to the clipboard"),
        Binding(
            "tab", "app.focus_next", "Next part", id="focus.next", tooltip="Go to the next part of the tab", show=False
        ),
        Binding("question_mark", "help", "Help", id="help", tooltip="Every key and what it does", key_display="?"),
        Binding("q,ctrl+c", "quit", "Quit", id="quit", tooltip="Leave; the recording stays where it is"),
    ]

    def __init__(self, report: Report) -> None:
        super().__init__()
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
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Let the arrow keys scroll the overview at once."""
        self.action_show("overview")

    def action_show(self, tab: str) -> None:
        """Go to a tab, with the keyboard in its first part."""
        self.query_one(TabbedContent).active = tab
        first = {"overview": "#overview-text", "advice": "#advice-list", "ranks": "#rank-rows"}[tab]
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
        bindings = [binding for binding in self.BINDINGS if isinstance(binding, Binding)]
        self.push_screen(HelpScreen([(_keys(binding), binding) for binding in bindings]))


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

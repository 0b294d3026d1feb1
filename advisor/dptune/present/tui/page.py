"""A text over the report, to read and to close."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.screen import ModalScreen

from dptune.present.tui.pane import Layout, Pane
from dptune.present.visible import visible


class PageScreen(ModalScreen[None]):
    """One text with a title."""

    DEFAULT_CSS = """
    PageScreen { align: center middle; }
    PageScreen Pane {
        width: 96; max-width: 95%; height: auto; max-height: 90%; border: round $accent;
        border-title-color: $foreground; border-title-style: bold;
    }
    """
    BINDINGS: ClassVar = [
        Binding("escape,q,question_mark", "dismiss", "Close", id="page.close", tooltip="Close"),
    ]

    def __init__(self, title: str, layout_lines: Layout) -> None:
        super().__init__()
        self._title, self._layout_lines = title, layout_lines

    def compose(self) -> ComposeResult:
        """One text."""
        pane = Pane(self._layout_lines, id="page")
        pane.border_title = Text(visible(self._title))
        yield pane

    def on_mount(self) -> None:
        """Let the arrow keys scroll it."""
        self.query_one(Pane).focus()

"""The help screen, made from the bindings themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.screen import ModalScreen

from dptune.present.lines import Line, labelled, line, wrapped
from dptune.present.tui.pane import Pane

_MOVING = "Up, down, Page Up and Page Down move in a list or a text. A mouse works too, but nothing needs one."


class HelpScreen(ModalScreen[None]):
    """Every key and what it does."""

    DEFAULT_CSS = """
    HelpScreen { align: center middle; }
    HelpScreen Pane { width: 72; max-width: 95%; height: 20; max-height: 90%; border: round $accent; }
    """
    BINDINGS: ClassVar = [
        Binding("escape,question_mark,q", "dismiss", "Close", id="help.close", tooltip="Close this help"),
    ]

    def __init__(self, keys: Sequence[tuple[str, Binding]]) -> None:
        super().__init__()
        self._keys = keys

    def compose(self) -> ComposeResult:
        """One text."""
        pane = Pane(self._words, id="help")
        pane.border_title = "Keys (Escape closes)"
        yield pane

    def on_mount(self) -> None:
        """Let the arrow keys scroll it."""
        self.query_one(Pane).focus()

    def _words(self, width: int) -> Iterator[Line]:
        for key, binding in self._keys:
            yield from labelled(key, f"{binding.description}. {binding.tooltip}", width, column=11)
        yield line("")
        yield from wrapped(_MOVING, width)

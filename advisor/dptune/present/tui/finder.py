"""One line at the bottom of the screen for words to find."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Static


class Finder(Horizontal):
    """Hidden until it is asked for. What it finds is what the tab that is open makes of the words."""

    DEFAULT_CSS = """
    Finder { height: 1; display: none; padding: 0 1; }
    Finder.-open { display: block; }
    Finder #found { width: auto; }
    Finder Input { width: 1fr; }
    """
    BINDINGS: ClassVar = [
        Binding("escape", "close", "Close", id="find.close", tooltip="Back to the tab, unfiltered"),
    ]

    class Submitted(Message):
        """Words to find; the same again for their next place."""

        def __init__(self, words: str) -> None:
            super().__init__()
            self.words = words

    class Closed(Message):
        """Nothing is looked for any more."""

    def compose(self) -> ComposeResult:
        """Where words are typed, and what came of them."""
        yield Input(
            placeholder="Type text, then Enter; Enter again for the next match. Escape closes.",
            compact=True,
            id="words",
        )
        yield Static("", id="found", markup=False)

    def open(self) -> None:
        """Let words be typed."""
        self.add_class("-open")
        self.query_one(Input).focus()

    def say(self, found: str) -> None:
        """Show what came of them."""
        self.query_one("#found", Static).update(found)

    def action_close(self) -> None:
        """Hide it."""
        self.remove_class("-open")
        self.query_one(Input).value = ""
        self.say("")
        self.post_message(self.Closed())

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter."""
        event.stop()
        self.post_message(self.Submitted(event.value))

"""A pane of lines that are laid out again whenever their width changes, and in which words can be found."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from dptune.present.lines import Line, Role
from dptune.present.visible import visible

Layout = Callable[[int], Iterable[Line]]
_STYLES: dict[Role, str] = {
    "strong": "bold",
    "dim": "dim",
    "code": "cyan",
    "note": "blue",
    "warning": "yellow",
    "error": "bold red",
    "good": "green",
}
_COLOURS = {"blue", "cyan", "green", "magenta", "red", "yellow"}
_FOUND = "reverse"
FRAMED = "framed"  # class of a part with a border, which shows where the focus is


def style_of(role: Role) -> str:
    """How text of a role is drawn."""
    return hue(_STYLES.get(role, ""))


def hue(style: str) -> str:
    """The style, without its colour under NO_COLOR: textual would make it a grey, of red one too dark to be seen."""
    if not os.environ.get("NO_COLOR"):
        return style
    return " ".join(word for word in style.split() if word not in _COLOURS)


def painted(lines: Iterable[Line]) -> Text:
    """The lines as detailed text: styled spans, never markup."""
    text = Text()
    for number, line in enumerate(lines):
        if number:
            text.append("\n")
        for span in line:
            text.append(visible(span.text), style_of(span.role))
    return text


class Folded:
    """Lines that are laid out at whatever width they are drawn at, with the words that are looked for marked."""

    def __init__(self, layout_lines: Layout, words: str = "") -> None:
        self._layout_lines, self._words = layout_lines, words
        self._made: tuple[int, Text] | None = None  # at the width drawn last: a layout asks several times

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._made is None or self._made[0] != options.max_width:
            text = painted(self._layout_lines(options.max_width))
            if self._words:
                text.highlight_regex(_pattern(self._words), _FOUND)
            self._made = options.max_width, text
        yield self._made[1]


class Pane(VerticalScroll):
    """Scrollable lines; `layout_lines` is given the columns there are."""

    DEFAULT_CSS = """
    Pane { padding: 0 1; scrollbar-size-vertical: 1; scrollbar-gutter: stable; }
    Pane Static { width: 1fr; }
    """

    def __init__(self, layout_lines: Layout, *, id: str, classes: str = "") -> None:
        super().__init__(id=id, classes=classes)
        self._layout_lines = layout_lines
        self._words, self._at = "", -1
        self._body = Static(Folded(layout_lines))

    def compose(self) -> ComposeResult:
        """One text."""
        yield self._body

    def show(self, layout_lines: Layout) -> None:
        """Show other lines, from their top."""
        self._layout_lines = layout_lines
        self._body.update(Folded(layout_lines, self._words))
        self.scroll_home(animate=False)

    def find(self, words: str) -> str:
        """Mark the words and go to the next line that has them; which of how many that is. Without words, unmark."""
        if words != self._words:
            self._words, self._at = words, -1
            self._body.update(Folded(self._layout_lines, words))
        if not words:
            return ""
        lines = painted(self._layout_lines(self._body.content_size.width or self.size.width)).plain.split("\n")
        rows = [row for row, text in enumerate(lines) if _pattern(words).search(text)]
        if not rows:
            return "not on this page"
        self._at = (self._at + 1) % len(rows)
        self.scroll_to(y=max(rows[self._at] - 2, 0), animate=False)
        return f"line {self._at + 1} of {len(rows)}"


def _pattern(words: str) -> re.Pattern[str]:
    return re.compile(re.escape(words), re.IGNORECASE)

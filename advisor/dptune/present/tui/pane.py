"""A pane of lines that are laid out again whenever their width changes."""

from __future__ import annotations

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


def painted(lines: Iterable[Line]) -> Text:
    """The lines as rich text: styled spans, never markup."""
    text = Text()
    for number, line in enumerate(lines):
        if number:
            text.append("\n")
        for span in line:
            text.append(visible(span.text), _STYLES.get(span.role, ""))
    return text


class Folded:
    """Lines that are laid out at whatever width they are drawn at."""

    def __init__(self, layout_lines: Layout) -> None:
        self._layout_lines = layout_lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield painted(self._layout_lines(options.max_width))


class Pane(VerticalScroll):
    """Scrollable lines; `layout_lines` is given the columns there are."""

    DEFAULT_CSS = """
    Pane { padding: 0 1; scrollbar-size-vertical: 1; scrollbar-gutter: stable; }
    Pane Static { width: 1fr; }
    """

    def __init__(self, layout_lines: Layout, *, id: str) -> None:
        super().__init__(id=id)
        self._body = Static(Folded(layout_lines))

    def compose(self) -> ComposeResult:
        """One text."""
        yield self._body

    def show(self, layout_lines: Layout) -> None:
        """Show other lines, from their top."""
        self._body.update(Folded(layout_lines))
        self.scroll_home(animate=False)

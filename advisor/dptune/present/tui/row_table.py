"""A table whose cursor is a row."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.binding import Binding
from textual.widgets import DataTable

from dptune.present.tui.pane import FRAMED


class RowTable(DataTable[Text]):
    """A table in a frame; Home and End go to its first and last row."""

    DEFAULT_CSS = """
    RowTable { scrollbar-size-vertical: 1; }
    RowTable:focus > .datatable--cursor { background: $primary-darken-1; }
    """
    BINDINGS: ClassVar = [
        Binding("home", "scroll_top", "First row", id="rows.first", tooltip="The first row", show=False),
        Binding("end", "scroll_bottom", "Last row", id="rows.last", tooltip="The last row", show=False),
    ]

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id, classes=FRAMED, cursor_type="row", zebra_stripes=True)

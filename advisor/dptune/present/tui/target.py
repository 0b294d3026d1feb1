"""What a tab says where it wants the timeline to show something."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding
from textual.message import Message
from textual.widgets import OptionList


class GoTo(Message):
    """A rank, and a stretch of its time: ns on the trace's own clock; its median step where none is named."""

    def __init__(self, rank: int, start_ns: int | None = None, end_ns: int | None = None) -> None:
        super().__init__()
        self.rank, self.start_ns, self.end_ns = rank, start_ns, end_ns


class Places(OptionList):
    """A list in which Enter means: show that in the timeline."""

    BINDINGS: ClassVar = [
        Binding(
            "enter",
            "select",
            "In the timeline",
            id="place.show",
            tooltip="Show the gap in the timeline",
        ),
    ]

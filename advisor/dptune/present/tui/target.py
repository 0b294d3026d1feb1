"""What a tab says where it wants the timeline to show something."""

from __future__ import annotations

from textual.message import Message


class GoTo(Message):
    """A rank, and a stretch of its time: ns on the trace's own clock; its median step where none is named."""

    def __init__(self, rank: int, start_ns: int | None = None, end_ns: int | None = None) -> None:
        super().__init__()
        self.rank, self.start_ns, self.end_ns = rank, start_ns, end_ns

"""What a tab says where it wants another tab to show something."""

from __future__ import annotations

from textual.message import Message

from dptune.advice import Advice


class GoTo(Message):
    """A rank, and a stretch of its time: ns on the trace's own clock; its median step where none is named."""

    def __init__(self, rank: int, start_ns: int | None = None, end_ns: int | None = None) -> None:
        super().__init__()
        self.rank, self.start_ns, self.end_ns = rank, start_ns, end_ns


class Try(Message):
    """A recommendation whose settings the what-if tab is to predict."""

    def __init__(self, advice: Advice) -> None:
        super().__init__()
        self.advice = advice

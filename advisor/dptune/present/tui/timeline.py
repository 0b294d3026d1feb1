"""The timeline tab: all ranks at the same moment, what one rank ran, or two ranks one above the other."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container
from textual.widgets import Static
from textual.worker import get_current_worker

from dptune.advice import Report
from dptune.measure.rank_time import RunTime
from dptune.present.tui import timeline_picture
from dptune.present.tui.background import uncollected
from dptune.present.tui.pane import FRAMED, Pane
from dptune.present.tui.rows import LABEL
from dptune.present.tui.timeline_view import TimelineView
from dptune.present.visible import visible
from dptune.trace.run import Run

_AROUND = 2  # lines above and below the rows
_FRAME = 4  # columns of border and padding
_EVERY_S = 0.2  # from one word on how far it is to the next
_MOST_WAITING = 50  # keys that wait until the ranks are read
_MOST_NAMED = 6  # of them on the screen

Key = tuple[str, int]  # what it asks for, and in which direction


class Timeline(Container, can_focus=True):
    """Rows above, what is under the cursor below. Keys that need all ranks wait until these are read."""

    DEFAULT_CSS = """
    Timeline { layout: vertical; }
    Timeline #lanes { height: 1fr; padding: 0 1; }
    Timeline Pane { height: 8; }
    """
    BINDINGS: ClassVar = [
        Binding(
            "left", "go('move', -1)", "Left", id="time.left", tooltip="Move the cursor; scroll at the edge", show=False
        ),
        Binding("right", "go('move', 1)", "Right", id="time.right", tooltip="The same to the right", show=False),
        Binding("up", "go('lane', -1)", "Lane", id="lane.up", tooltip="The lane above", show=False),
        Binding("down", "go('lane', 1)", "Lane", id="lane.down", tooltip="The lane below", show=False),
        Binding(
            "enter",
            "go('open')",
            "Open",
            id="lane.open",
            tooltip="Open the ranks of a host, a rank, or zoom to a range",
        ),
        Binding("escape", "go('back')", "Back", id="lane.back", tooltip="Back to all ranks", key_display="esc"),
        Binding(
            "plus,equals_sign",
            "go('zoom', 1)",
            "Zoom",
            id="time.in",
            tooltip="Zoom in at the cursor",
            key_display="+ -",
        ),
        Binding("minus", "go('zoom', -1)", "Out", id="time.out", tooltip="Zoom out", key_display="-", show=False),
        Binding("n", "go('step', 1)", "Step", id="step.next", tooltip="The next step", key_display="n p"),
        Binding("p", "go('step', -1)", "Step before", id="step.before", tooltip="The previous step", show=False),
        Binding("0", "go('step', 0)", "Whole step", id="step.whole", tooltip="The whole step again", show=False),
        Binding("r", "go('rank', 1)", "Rank", id="rank.next", tooltip="The next rank, at the same step"),
        Binding(
            "b",
            "go('beside')",
            "Beside",
            id="rank.beside",
            tooltip="The straggler and another rank at the same moment",
        ),
    ]

    def __init__(self, run: Run, report: Report) -> None:
        super().__init__(id="timeline")
        self.view = TimelineView(run, report, self._screen)
        self._reading, self._failure = "", ""
        self._waiting: list[Key] = []
        self._moves: dict[str, Callable[[int], None]] = {
            "move": self.view.move,
            "lane": self.view.move_lane,
            "open": lambda by: self.view.open(),
            "zoom": self.view.zoom,
            "step": self.view.move_step,
            "rank": self.view.move_rank,
            "back": lambda by: self.view.back(),
            "beside": lambda by: self._beside(),
        }

    def compose(self) -> ComposeResult:
        """The rows, then words."""
        yield Static(id="lanes", classes=FRAMED)
        pane = Pane(lambda width: timeline_picture.words(self.view, width), id="under-cursor", classes=FRAMED)
        pane.border_title = "Under the cursor"
        yield pane

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys of several ranks are offered where there are several; Escape where there is something to go back to."""
        asked = parameters[0] if action == "go" else ""
        if asked in ("rank", "beside"):
            return len(self.view.numbers) > 1
        return asked != "back" or bool(self._reading or self._waiting) or self.view.can_go_back

    def on_show(self) -> None:
        """Ranks are read and put on one clock in the background, when the tab is first shown."""
        several = len(self.view.numbers) > 1
        if not self._reading and (self.view.run_time is None if several else not self.view.rows):
            self._reading = "reading ..."
            self.run_worker(self._read if several else self._read_one, thread=True)
        self._draw()

    def _read_one(self) -> None:
        """Read the only rank."""
        try:
            with uncollected():
                lanes = self.view.lanes(self.view.rank)
                lanes.between(0, 1)  # which sorts what every picture needs
                lanes.host.between(0, 1)
        except Exception as error:
            self._failure = f"the rank cannot be drawn: {type(error).__name__}: {error}"
        if not get_current_worker().is_cancelled:
            self.app.call_from_thread(self._keep, None)

    def _read(self) -> None:
        worker, shown_s = get_current_worker(), -_EVERY_S

        def progress(done: int, of: int) -> None:
            nonlocal shown_s
            self._reading = f"reading rank {done + 1:,} of {of:,} ..." if done < of else "comparing the ranks ..."
            if not worker.is_cancelled and monotonic() - shown_s >= _EVERY_S:
                self.app.call_from_thread(self._draw_progress)
                shown_s = monotonic()

        try:
            with uncollected():
                found = RunTime(self.view.run, progress)
        except Exception as error:
            self._failure = f"the ranks cannot be compared: {type(error).__name__}: {error}"
            found = None
        if not worker.is_cancelled:
            self.app.call_from_thread(self._keep, found)

    def _keep(self, run_time: RunTime | None) -> None:
        """Show all ranks, then do what keys asked for meanwhile."""
        self._reading = ""
        can_be_drawn = len(self.view.numbers) > 1 or not self._failure
        if run_time is not None or (can_be_drawn and not self.view.end):
            self.view.show_ranks(run_time)
        waiting, self._waiting = self._waiting, []
        for name, by in waiting:
            self._moves[name](by)
        self._draw()

    def on_resize(self) -> None:
        """Another width shows other parts."""
        self.look(self.view.begin, self.view.end)

    def look(self, begin: int, end: int) -> None:
        """Show a stretch of time."""
        self.view.look(begin, end)
        self._draw()

    def go_to(self, rank: int, start_ns: int | None = None, end_ns: int | None = None) -> None:
        """Show a stretch of a rank's time, and some around it; its median step where none is named."""
        self._waiting = []
        self.view.go_to(rank, start_ns, end_ns)
        self._draw()

    def find(self, words: str) -> str:
        """Go to the next operation of the rank under the cursor that has the words in its name."""
        where = self.view.find(words)
        self._draw()
        return where

    @property
    def command(self) -> str:
        """The command that shows the Python functions that an opened rank lacks; else empty."""
        return timeline_picture.without_functions(self.view)[1]

    def action_go(self, name: str, by: int = 0) -> None:
        """Do what a key asks for; what needs all ranks waits until they are read, unless Escape cancels it."""
        if self._waiting and name == "back":
            self._waiting = []
        elif self._reading and (self._waiting or not self.view.rows or name in ("back", "beside")):
            self._waiting = [*self._waiting, (name, by)][:_MOST_WAITING]
        else:
            self._moves[name](by)
        self._draw()

    def _beside(self) -> None:
        if self.view.run_time is None:
            self.app.notify("There is no other rank to compare with.", markup=False, timeout=2)
        else:
            self.view.beside()

    def _screen(self) -> tuple[int, int]:
        """Cells of a row, and rows that there are lines for."""
        return max(self.size.width - LABEL - _FRAME, 10), max(self.query_one("#lanes").size.height - _AROUND, 1)

    def _draw_progress(self) -> None:
        """How far reading is, and nothing else: to draw all of it takes longer than to read several ranks."""
        if not self.is_mounted:
            return
        lanes = self.query_one("#lanes", Static)
        if self.view.rows:
            lanes.border_subtitle = Text(self._until_read())
        else:
            lanes.update(Text(self._no_rows()))

    def _draw(self) -> None:
        if not self.is_mounted:
            return
        lanes = self.query_one("#lanes", Static)
        hint, _ = timeline_picture.without_functions(self.view)
        lanes.border_title = Text(timeline_picture.heading(self.view)) if self.view.rows else "Timeline"
        lanes.border_subtitle = Text(self._until_read() if self._reading else hint) if self.view.rows else ""
        lanes.update(timeline_picture.picture(self.view) if self.view.rows else Text(self._no_rows()))
        self.query_one(Pane).show(lambda width: timeline_picture.words(self.view, width))
        self.refresh_bindings()

    def _no_rows(self) -> str:
        """Why nothing is drawn."""
        if self._reading:
            return self._until_read()
        return visible(self._failure) or "No events were found in this rank's trace."

    def _until_read(self) -> str:
        """How far reading is, and which keys wait for it."""
        if not self._waiting:
            return self._reading
        titles = {binding.action: binding.description for binding in self.BINDINGS if isinstance(binding, Binding)}
        actions = [f"go('{name}', {by})" if by or name == "step" else f"go('{name}')" for name, by in self._waiting]
        named = ", ".join(titles[action] for action in actions[:_MOST_NAMED])
        more = f" and {len(actions) - _MOST_NAMED} more" if len(actions) > _MOST_NAMED else ""
        return f"{self._reading} then: {named}{more} (esc: cancel)"

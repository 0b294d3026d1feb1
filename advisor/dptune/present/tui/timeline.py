"""The timeline tab: one rank's lanes between two moments, in letters, so that no colour is needed to read it."""

from __future__ import annotations

from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container
from textual.widgets import Static

from dptune.measure.lanes import SELF_TIME, Lane, Piece, RankLanes, SearchHit
from dptune.measured import short_name
from dptune.present.amounts import ns_as_ms, several
from dptune.present.lines import Line, labelled, line, wrapped
from dptune.present.tui.pane import Pane
from dptune.present.visible import visible
from dptune.trace.run import Run

# The sign of each kind of work, and its colour where there are colours.
SIGNS = {
    "compute": ("#", "green"),
    "communication": ("!", "red"),
    "copy": ("=", "yellow"),
    "memset": ("-", "yellow"),
    "loader": ("~", "yellow"),
    "backward": ("b", "cyan"),
    "optimizer": ("o", "blue"),
}
_WORDS = "# compute ! communication = copy - memset ~ loader b backward o optimizer"
_LABEL = 16  # columns of a lane's name
_AROUND = 2  # lines above and below the lanes
_LEAST_NS = 1000  # that a screen shows
_ZOOM = 2.0
_PAN = 0.25


class Timeline(Container, can_focus=True):
    """Lanes above, what is under the cursor below."""

    DEFAULT_CSS = """
    Timeline { layout: vertical; }
    Timeline #lanes { height: 1fr; padding: 0 1; }
    Timeline Pane { height: 9; border: round $primary; }
    Timeline:focus #lanes { background: $surface; }
    """
    BINDINGS: ClassVar = [
        Binding("left", "move(-1)", "Left", id="time.left", tooltip="Move the cursor; scroll at the edge"),
        Binding("right", "move(1)", "Right", id="time.right", tooltip="The same to the right", show=False),
        Binding("up", "lane(-1)", "Lane", id="lane.up", tooltip="The lane above", show=False),
        Binding("down", "lane(1)", "Lane", id="lane.down", tooltip="The lane below", show=False),
        Binding("plus,equals_sign", "zoom(1)", "Zoom", id="time.in", tooltip="Zoom in at the cursor", key_display="+"),
        Binding("minus", "zoom(-1)", "Out", id="time.out", tooltip="Farther", key_display="-"),
        Binding("n", "step(1)", "Next step", id="step.next", tooltip="The next step of this rank"),
        Binding("p", "step(-1)", "Step before", id="step.before", tooltip="The previous step", show=False),
        Binding("r", "rank(1)", "Rank", id="rank.next", tooltip="The next rank, at the same step"),
    ]

    def __init__(self, run: Run) -> None:
        super().__init__(id="timeline")
        self._run = run
        self._own: RankLanes | None = None
        self._rank = self._step = self._lane = self._column = 0
        self._begin = self._end = 0
        self._found: SearchHit | None = None  # the operation that was found last, until the cursor moves
        self._lanes: list[Lane] = []

    def compose(self) -> ComposeResult:
        """The lanes, then words."""
        yield Static(id="lanes")
        pane = Pane(self._words, id="under-cursor")
        pane.border_title = "Under the cursor"
        yield pane

    def on_show(self) -> None:
        """A rank is read when someone looks."""
        if self._own is None:
            self._open(0)

    def on_resize(self) -> None:
        """Another width shows other parts."""
        self._draw()

    def go_to(self, rank: int, start_ns: int | None = None, end_ns: int | None = None) -> None:
        """Show a stretch of a rank's time, with as much again on both sides; its median step where none is named."""
        numbers = [rank_trace.rank for rank_trace in self._run.ranks]
        if rank not in numbers:
            return
        self._open(numbers.index(rank))
        if start_ns is not None and self._own is not None:
            end = start_ns if end_ns is None else end_ns
            self._column = self._columns // 2
            room = max(end - start_ns, _LEAST_NS)
            self._look(start_ns - room, end + room)
            self._lane = self._busy_lane((start_ns + end) // 2)
            self._draw()

    def _busy_lane(self, at: int) -> int:
        """The first of a device that does something then; where none does, the script's, which may say why."""
        moment = at - self._begin

        def busy(lane: Lane) -> bool:
            return any(piece.start_ns <= moment < piece.start_ns + piece.length_ns for piece in lane.pieces)

        order = [*range(1, len(self._lanes)), 0]
        return next((place for place in order if busy(self._lanes[place])), min(1, len(self._lanes) - 1))

    def find(self, words: str) -> str:
        """Go to the next operation of this rank, after the cursor, that has the words in its name."""
        if not words or self._own is None:
            return ""
        per_cell = (self._end - self._begin) / self._columns
        under = self._begin + round(per_cell * (self._column + 0.5))
        after = self._found.start_ns if self._found is not None else under
        found = self._own.next_named(words, after)
        if found is None:
            return "none on this rank"
        start, end = found.start_ns, found.end_ns
        length = max(self._end - self._begin, end - start)
        self._column = self._columns // 2
        self._look((start + end - length) // 2, (start + end + length) // 2)
        self._lane, self._found = found.lane, found
        self._draw()
        return f"{found.at:,} of {found.many:,}"

    def action_move(self, by: int) -> None:
        """Move the cursor; past the edge the picture moves."""
        if not self._lanes:
            return
        self._found = None
        self._column += by
        if not 0 <= self._column < self._columns:
            shift = int((self._end - self._begin) * _PAN) * by
            self._column = min(max(self._column, 0), self._columns - 1) - round(self._columns * _PAN) * by
            self._look(self._begin + shift, self._end + shift)
        self._draw()

    def action_lane(self, by: int) -> None:
        """Go to another lane."""
        self._lane = min(max(self._lane + by, 0), max(len(self._lanes) - 1, 0))
        self._draw()

    def action_zoom(self, by: int) -> None:
        """Nearer or farther, with the cursor where it is."""
        if not self._lanes or self._own is None:
            return
        length, (first, last) = self._end - self._begin, self._own.recorded_ns
        wanted = max(min(int(length / _ZOOM if by > 0 else length * _ZOOM), last - first), _LEAST_NS)
        at = self._begin + length * (self._column + 0.5) / self._columns
        begin = int(at - wanted * (self._column + 0.5) / self._columns)
        begin = max(min(begin, last - wanted), first) if by < 0 else begin
        self._look(begin, begin + wanted)

    def action_step(self, by: int) -> None:
        """Another step of this rank, as a whole."""
        if self._own is not None and self._own.steps:
            self._step = min(max(self._step + by, 0), len(self._own.steps) - 1)
            self._whole()

    def action_rank(self, by: int) -> None:
        """Another rank, at the same place in its steps."""
        step = self._step
        self._open((self._rank + by) % len(self._run.ranks))
        if self._own is not None and self._own.steps:
            self._step = min(step, len(self._own.steps) - 1)
            self._whole()

    @property
    def _columns(self) -> int:
        """Cells of a lane."""
        return max(self.size.width - _LABEL - 2, 10)

    def _open(self, place: int) -> None:
        self._rank = place
        self._own = RankLanes(self._run, self._run.ranks[place].rank)
        self._step = self._own.median or 0
        self._whole()

    def _whole(self) -> None:
        rank_lanes = self._own
        if rank_lanes is None or not rank_lanes.steps:
            self._lanes = []
            self._draw()
            return
        step = rank_lanes.steps[self._step]
        self._look(step.start_ns, step.end_ns)

    def _look(self, begin: int, end: int) -> None:
        if self._own is None:
            return
        self._found = None
        self._begin, self._end = begin, max(end, begin + _LEAST_NS)
        middle = (self._begin + self._end) // 2
        begun = [at for at, step in enumerate(self._own.steps) if step.start_ns <= middle]
        self._step = begun[-1] if begun else 0
        self._lanes = self._own.between(self._begin, self._end)
        self._lane = min(self._lane, max(len(self._lanes) - 1, 0))
        self._column = min(max(self._column, 0), self._columns - 1)
        self._draw()

    def _draw(self) -> None:
        if not self.is_mounted:
            return
        self.query_one("#lanes", Static).update(self._picture())
        self.query_one(Pane).show(self._words)

    def _picture(self) -> Text:
        if self._own is None:
            return Text("reading ...")
        if not self._lanes:
            return Text("No steps were found in this rank's trace.")
        number = self._own.steps[self._step].number if self._own.steps else 0
        shown = ns_as_ms(self._end - self._begin)
        text = Text(f"rank {self._own.rank}, around step {number}: {shown} ms from left to right", style="bold")
        first, last = _seen(len(self._lanes), self._lane, self.query_one("#lanes").size.height - _AROUND)
        if last - first < len(self._lanes):
            text.append(f"; lanes {first + 1} to {last} of {len(self._lanes)}")
        text.append("\n")
        for place, lane in enumerate(self._lanes[first:last], first):
            chosen = place == self._lane
            text.append(f"{'>' if chosen else ' '}{visible(lane.label)[: _LABEL - 2]:<{_LABEL - 1}}")
            for column, kind in enumerate(_cells(lane, self._end - self._begin, self._columns)):
                sign, colour = SIGNS.get(kind, (" ", ""))
                here = column == self._column
                text.append(
                    sign if not here or sign != " " else "|", Style(color=colour or None, reverse=here and chosen)
                )
            text.append("\n")
        return text.append(_WORDS, style="dim")

    def _under(self) -> tuple[Lane, Piece | None] | None:
        if not self._lanes:
            return None
        lane = self._lanes[self._lane]
        length = (self._end - self._begin) / self._columns
        low, high = self._column * length, (self._column + 1) * length
        touching = [piece for piece in lane.pieces if piece.start_ns < high and piece.start_ns + piece.length_ns > low]
        return lane, max(touching, key=lambda candidate: _common(candidate, low, high), default=None)

    def _words(self, width: int) -> list[Line]:
        under = self._under()
        if under is None:
            return list(wrapped("Nothing here.", width))
        lane, piece = under
        found = self._found if self._found and self._found.lane == self._lane else None
        lines = [line(f"{lane.label}{f': {piece.kind}' if piece else ''}", "strong")]
        if found is not None:
            length = ns_as_ms(found.end_ns - found.start_ns)
            lines += labelled("Found", f"{short_name(found.name)}, {length} ms", width)
        if piece is None:
            return lines if found else [*lines, *wrapped("Idle.", width)]
        lines += labelled("What", short_name(piece.name) or SELF_TIME, width)
        at_edge = piece.start_ns <= 0 or piece.start_ns + piece.length_ns >= self._end - self._begin
        whole_ns = piece.longest_ns if piece.count == 1 and at_edge else 0
        lines += labelled("Takes", f"{ns_as_ms(max(whole_ns, piece.length_ns))} ms", width)
        if whole_ns > piece.length_ns:
            lines += labelled("Drawn", f"{ns_as_ms(piece.length_ns)} ms of it", width)
        if piece.count > 1:
            longest = f"the longest, of {ns_as_ms(piece.longest_ns)} ms, is named"
            lines += labelled("Holds", f"{several(piece.count, 'operation')}; {longest}", width)
        return lines


def _seen(count: int, chosen: int, room: int) -> tuple[int, int]:
    """From which lane to which there is room for, the chosen one in the middle where not all are seen."""
    if room < 1 or count <= room:
        return 0, count
    first = min(max(chosen - room // 2, 0), count - room)
    return first, first + room


def _cells(lane: Lane, length_ns: int, columns: int) -> list[str]:
    """What each cell shows: the kind that most of it is; nothing where most of it is idle and no piece begins there."""
    per_cell = length_ns / columns
    best, kinds = [0.0] * columns, [""] * columns
    for piece in lane.pieces:
        first = max(int(piece.start_ns / per_cell), 0)
        last = min(int((piece.start_ns + piece.length_ns) / per_cell), columns - 1)
        for cell in range(first, last + 1):
            common = _common(piece, cell * per_cell, (cell + 1) * per_cell)
            if common > best[cell]:
                best[cell], kinds[cell] = common, piece.kind
    return kinds


def _common(piece: Piece, low: float, high: float) -> float:
    return min(piece.start_ns + piece.length_ns, high) - max(piece.start_ns, low)

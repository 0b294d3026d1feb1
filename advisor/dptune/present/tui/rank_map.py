"""The map of many ranks: a cell for each, by host or by position in process groups; the higher, the later."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.message import Message
from textual.widgets import Static

from dptune.advice import Report
from dptune.measured.outliers import OutlierFigures, RankLag
from dptune.present.amounts import ns_as_ms, percent
from dptune.present.columns import padded
from dptune.present.lines import Line, labelled, line
from dptune.present.sections.outliers import outliers
from dptune.present.tui.heat import (
    BETWEEN,
    NOT_LATE,
    Grouping,
    Tile,
    both_ends,
    groupings,
    heat,
    name_width,
    places,
    rows_of,
)
from dptune.present.tui.pane import FRAMED, hue, style_of
from dptune.present.tui.target import GoTo
from dptune.present.visible import visible

_CURSOR, _CURSOR_LATE = "x", "X"


class RankMap(VerticalScroll, can_focus=True):
    """Tiles of ranks, and a cursor on one of them; its keys are those of the tab."""

    DEFAULT_CSS = """
    RankMap { height: auto; padding: 0 1; scrollbar-size-vertical: 1; }
    """

    BINDINGS: ClassVar = [
        Binding("left", "move(-1, 0)", "Rank", id="map.left", tooltip="The rank before", show=False),
        Binding("right", "move(1, 0)", "Rank", id="map.right", tooltip="The next rank", show=False),
        Binding("up", "move(0, -1)", "Row", id="map.up", tooltip="The row above", show=False),
        Binding("down", "move(0, 1)", "Row", id="map.down", tooltip="The row below", show=False),
        Binding("enter", "open", "In the timeline", id="map.show", tooltip="Open the rank in the timeline"),
    ]

    class Moved(Message):
        """The cursor is on another rank."""

    def __init__(self, report: Report, found: OutlierFigures) -> None:
        super().__init__(id="rank-map", classes=FRAMED)
        self._found = found
        self._groupings = groupings(found, report.measured.ranks)
        self._lags = {lag.rank: lag for lag in found.ranks}
        self._late = sorted(self._late_ranks(), key=lambda rank: -self._lags[rank].lag_ns)
        self._most_ns = max(lag.lag_ns for lag in found.ranks)
        self._by = 0
        self.rank = (self._late or [found.ranks[0].rank])[0]
        self._body = Static()

    def _late_ranks(self) -> Iterator[int]:
        return (lag.rank for lag in self._found.ranks if lag.lag_ns >= self._found.threshold_ns)

    def compose(self) -> ComposeResult:
        """The tiles."""
        yield self._body

    def on_resize(self) -> None:
        """Another width has other rows."""
        self._draw()

    @property
    def any_late(self) -> bool:
        """Whether the map shows any lateness."""
        return bool(self._late)

    @property
    def grouping(self) -> Grouping:
        """What the ranks of a tile share."""
        return self._groupings[self._by]

    def regroup(self) -> None:
        """Group by what is next: host, tensor, data, ..."""
        self._by = (self._by + 1) % len(self._groupings)
        self._draw()

    def next_late(self) -> None:
        """Go to the late rank after this one, the latest first; around at the end."""
        if self._late:
            at = self._late.index(self.rank) + 1 if self.rank in self._late else 0
            self._go(self._late[at % len(self._late)])

    def show_rank(self, rank: int) -> None:
        """Put the cursor on a rank, if it is on the map."""
        if rank in self._lags:
            self._go(rank)

    def action_open(self) -> None:
        """Show the median step of the rank under the cursor."""
        self.post_message(GoTo(self.rank))

    def action_move(self, across: int, down: int) -> None:
        """To the next rank to a side; up or down to the nearest cell of the next row."""
        placed = self._places()
        line_of, column_of = placed[self.rank]
        if across:
            order = list(placed)
            self._go(order[min(max(order.index(self.rank) + across, 0), len(order) - 1)])
            return
        inside = [rank for rank, (at, _) in placed.items() if at == line_of + down]
        if inside:
            self._go(min(inside, key=lambda rank: abs(placed[rank][1] - column_of)))

    def find(self, words: str) -> str:
        """Go to the next rank whose name, host or position has the words."""
        low = words.lower()
        order = [(lag.rank, tile.name) for tile in self.grouping.tiles for lag in tile.ranks]
        fits = [rank for rank, name in order if low in f"rank {rank}" or low in name.lower()]
        if not words or not fits:
            return "none" if words else ""
        at = fits.index(self.rank) + 1 if self.rank in fits else 0
        self._go(fits[at % len(fits)])
        return f"{at % len(fits) + 1:,} of {len(fits):,}"

    def details(self, report: Report, width: int) -> Iterator[Line]:
        """On the rank under the cursor, then on all that differ."""
        lag = self._lags[self.rank]
        tile = next(tile for tile in self.grouping.tiles if lag in tile.ranks)
        on = f" on {tile.name}" if self.grouping.by == "host" else ""
        yield line(f"Rank {self.rank}{visible(on)}: {ns_as_ms(lag.lag_ns)} ms of own delay in the mean step", "strong")
        if lag.positions:
            where = ", ".join(f"{dimension} {position}" for dimension, position in lag.positions.items())
            yield from labelled("Position", where, width)
        late = sum(step >= self._found.threshold_ns for step in lag.steps_ns)
        if lag.steps_ns:
            drawn = heat(lag.steps_ns, max(self._most_ns, *lag.steps_ns, 1))
            yield from labelled("By step", f"{drawn}  late in {percent(late / len(lag.steps_ns))} of steps", width)
        yield from outliers(report, width)

    def _places(self) -> dict[int, tuple[int, int]]:
        tiles = self.grouping.tiles
        return dict(places(rows_of(tiles, self._width), tiles))

    @property
    def _width(self) -> int:
        return max(self.scrollable_content_region.width, 1)

    def _go(self, rank: int) -> None:
        self.rank = rank
        self._draw()
        self.post_message(self.Moved())

    def _draw(self) -> None:
        tiles = self.grouping.tiles
        rows = rows_of(tiles, self._width)
        self._body.update(Text("\n").join(self._row(row, tiles) for row in rows))
        following = self._groupings[(self._by + 1) % len(self._groupings)].by
        self.border_title = Text(
            visible(f"Ranks by {self.grouping.by}{f' (g: by {following})' * (following != self.grouping.by)}")
        )
        late = f"▁ to █: late, own delay up to {ns_as_ms(self._most_ns)} ms" if self._late else "no rank is late"
        self.border_subtitle = Text(f"{_CURSOR} selected, {_CURSOR_LATE} if late  {NOT_LATE} not late  {late}")
        at, _ = self._places()[self.rank]
        self.call_after_refresh(self._scroll_to_row, at)  # once the tiles have their height

    def _scroll_to_row(self, at: int) -> None:
        self.scroll_to(y=max(at - self.size.height // 2, 0), animate=False)

    def _row(self, row: Sequence[Tile], tiles: Sequence[Tile]) -> Text:
        """Tiles side by side; names of those with a late rank are marked."""
        wide = max(len(tile.ranks) for tile in row)
        drawn = []
        for tile in row:
            is_late = any(lag.rank in self._late for lag in tile.ranks)
            name = f"{padded(both_ends(tile.name), name_width(tiles))} "
            text = Text().append(name, style_of("error") if is_late else "")
            for lag in tile.ranks:
                text.append(*self._cell(lag))
            drawn.append(text)
        for text in drawn[:-1]:
            text.pad_right(name_width(tiles) + 1 + wide + BETWEEN - text.cell_len)
        return Text().join(drawn)

    def _cell(self, lag: RankLag) -> tuple[str, str]:
        """Its sign and style; the cursor is a letter, since a full block reversed is not seen."""
        is_late = lag.rank in self._late
        if lag.rank == self.rank:
            return (_CURSOR_LATE, hue("red bold reverse")) if is_late else (_CURSOR, "bold reverse")
        return (heat([lag.lag_ns], self._most_ns), hue("red")) if is_late else (NOT_LATE, "dim")

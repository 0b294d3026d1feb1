"""Lateness as cells: the higher the block, the later; and which ranks stand together in a map of many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from dptune.measured import RankFigures
from dptune.measured.outliers import OutlierFigures, RankLag
from dptune.present import columns
from dptune.present.visible import visible

HEAT = " ▁▂▃▄▅▆▇█"  # from not late to the latest of all ranks and steps
HEAT_CELLS = 16
NOT_LATE = "·"  # of a map, whose cells are all seen
_UNNAMED_CELLS = 32  # ranks side by side where hosts are not known
_ROUND = 8  # ranks of a row of many are a multiple of it
BETWEEN = 2  # columns between tiles
_LONGEST = 16  # letters of a name: of longer names both ends are shown


class Tile(NamedTuple):
    """Ranks of one host, or at one position of process groups, drawn as a cell each."""

    name: str
    ranks: tuple[RankLag, ...]


class Grouping(NamedTuple):
    """What the ranks of a tile have in common (host, tensor, data, ...), and the tiles in order."""

    by: str
    tiles: tuple[Tile, ...]


def heat(values: Sequence[int], most: int, cells: int = HEAT_CELLS) -> str:
    """As many cells as values, `cells` at most: each shows the largest of its values as a share of `most`."""
    cells = min(cells, len(values))
    bounds = [round(at * len(values) / cells) for at in range(cells + 1)] if cells else []
    tops = (max(values[low:high]) for low, high in pairwise(bounds))
    return "".join(HEAT[-(-top * (len(HEAT) - 1) // most)] for top in tops)


def both_ends(name: str, most: int = _LONGEST) -> str:
    """The name as it is shown; both ends of a longer one."""
    return columns.both_ends(visible(name), most)


def groupings(found: OutlierFigures, ranks: Sequence[RankFigures]) -> list[Grouping]:
    """By host, or by number where hosts are not known; then by position in process groups of each dimension."""
    hosts = {rank.rank: rank.known("host") or "" for rank in ranks}
    by_host: dict[str, list[RankLag]] = {}
    for lag in found.ranks:
        by_host.setdefault(hosts.get(lag.rank, ""), []).append(lag)
    if len(by_host) > 1:
        result = [Grouping("host", tuple(Tile(name or "?", tuple(lags)) for name, lags in by_host.items()))]
    else:
        result = [Grouping("rank", tuple(_in_rows("r", [(lag.rank, lag) for lag in found.ranks])))]
    by_position: dict[str, dict[int, list[RankLag]]] = {}
    for lag in found.ranks:
        for dimension, position in lag.positions.items():
            by_position.setdefault(dimension, {}).setdefault(position, []).append(lag)
    for dimension, positions in by_position.items():
        tiles = [Tile(f"{dimension} {position}", tuple(lags)) for position, lags in sorted(positions.items())]
        if all(len(tile.ranks) == 1 for tile in tiles):
            single = [(position, lags[0]) for position, lags in sorted(positions.items())]
            tiles = list(_in_rows(f"{dimension} ", single))
        result.append(Grouping(dimension, tuple(tiles)))
    return result


def _in_rows(name: str, lags: Sequence[tuple[int, RankLag]]) -> Iterator[Tile]:
    """Ranks with the number of each, so many to a tile, which the first and the last number name."""
    for at in range(0, len(lags), _UNNAMED_CELLS):
        row = lags[at : at + _UNNAMED_CELLS]
        yield Tile(f"{name}{row[0][0]}-{row[-1][0]}", tuple(lag for _, lag in row))


def rows_of(tiles: Sequence[Tile], width: int) -> list[list[Tile]]:
    """Tiles side by side as they fit; one that is wider than the width goes on in rows below it, without a name."""
    name = name_width(tiles)
    room = max(width - name - 1, _ROUND)
    room = room if room < _ROUND else room - room % _ROUND
    most = min(max(len(tile.ranks) for tile in tiles), room)
    across = max(1, (width + BETWEEN) // (name + 1 + most + BETWEEN))
    parts = [
        Tile("" if at else tile.name, tile.ranks[at : at + most])
        for tile in tiles
        for at in range(0, len(tile.ranks), most)
    ]
    return [parts[at : at + across] for at in range(0, len(parts), across)]


def name_width(tiles: Sequence[Tile]) -> int:
    """Columns of the longest name."""
    return max((columns.columns_of(both_ends(tile.name)) for tile in tiles), default=0)


def places(rows: Sequence[Sequence[Tile]], tiles: Sequence[Tile]) -> Mapping[int, tuple[int, int]]:
    """By rank, the row and the column of its cell."""
    name = name_width(tiles)
    wide = name + 1 + max((len(tile.ranks) for row in rows for tile in row), default=0) + BETWEEN
    return {
        lag.rank: (line, at * wide + name + 1 + cell)
        for line, row in enumerate(rows)
        for at, tile in enumerate(row)
        for cell, lag in enumerate(tile.ranks)
    }

"""Rows in columns, as wide as the page allows.

A hole is shown by a letter, and its reason below the table. A column in which every row misses the figure for one
reason is left out and named below. Where the page is too narrow for columns, each row is a sentence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from dptune.present.amounts import Hole
from dptune.present.columns import columns_of, cut_to, padded
from dptune.present.lines import Line, Role, Span, wrapped
from dptune.present.visible import visible

Cell = str | Hole
_GAPS = (2, 1)
_ROUNDS = 2
_HEAD = 3  # one part in so many of a cut text is its start, where it is cut in the middle
_WORDS = "_:<.,("  # signs that end a word of a name


class Column(NamedTuple):
    """A heading; numbers stand `right`. `least` is how far it may be cut where the page is too narrow: 0 for never."""

    heading: str
    right: bool = True
    least: int = 0


def table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int, indent: str = "  ") -> Iterator[Line]:
    """The heading, a line per row, and the reasons of what is missing."""
    if not rows:
        return
    left_out = absent_throughout(rows)
    kept = [i for i in range(len(columns)) if i not in left_out]
    marks: dict[Hole, str] = {}
    written = [[_written(row[i], marks) for i in kept] for row in rows]
    heads = [columns[i] for i in kept]
    yield from _drawn(heads, written, width, indent)
    for hole, mark in marks.items():
        yield from wrapped(f"{mark} {hole}", width, indent, f"{indent}    ", "dim")
    for hole in dict.fromkeys(left_out.values()):
        names = ", ".join(columns[i].heading for i in left_out if left_out[i] == hole)
        yield from wrapped(f"{names} {hole}", width, indent, f"{indent}  ", "dim")


def absent_throughout(rows: Sequence[Sequence[Cell]]) -> dict[int, Hole]:
    """Columns in which every row misses the figure for one reason, with that reason."""
    return dict(_absent(rows))


def _absent(rows: Sequence[Sequence[Cell]]) -> Iterator[tuple[int, Hole]]:
    for i, first in enumerate(rows[0]):
        if isinstance(first, Hole) and all(row[i] == first for row in rows):
            yield i, first


def _written(cell: Cell, marks: dict[Hole, str]) -> str:
    if isinstance(cell, Hole):
        return marks.setdefault(cell, f"[{_letter(len(marks))}]")
    return visible(cell)


def _letter(place: int) -> str:
    return chr(ord("a") + place) if place < 26 else str(place)


def _drawn(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int, indent: str) -> Iterator[Line]:
    for gap in _GAPS:
        widths, excess = _widths(columns, rows, width - len(indent) - gap * (len(columns) - 1))
        if excess <= 0:
            yield (_cells([column.heading for column in columns], columns, widths, indent, gap, "dim"),)
            cut = [_shortened([row[i] for row in rows], room) for i, room in enumerate(widths)]
            for pieces in zip(*cut, strict=True):
                yield (_cells(pieces, columns, widths, indent, gap, "plain"),)
            return
    for row in rows:
        said = ", ".join(f"{column.heading} {text}" for column, text in zip(columns, row, strict=True))
        yield from wrapped(said, width, indent, f"{indent}  ")


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]], room: int) -> tuple[list[int], int]:
    """Width of each column, and by how much they are too wide together."""
    widths = [max(len(columns[i].heading), *(columns_of(row[i]) for row in rows)) for i in range(len(columns))]
    excess = sum(widths) - room
    for i, column in enumerate(columns):
        if column.least and excess > 0:
            cut = min(excess, max(0, widths[i] - max(column.least, len(column.heading))))
            widths[i] -= cut
            excess -= cut
    return widths, excess


def _cells(
    texts: Sequence[str], columns: Sequence[Column], widths: Sequence[int], indent: str, gap: int, role: Role
) -> Span:
    pieces = [padded(text, room, column.right) for text, column, room in zip(texts, columns, widths, strict=True)]
    return Span((indent + (" " * gap).join(pieces)).rstrip(), role)


def _shortened(texts: Sequence[str], room: int) -> list[str]:
    """Texts cut to the room: at the end, or in the middle where different ones would look the same."""
    cut = [text if columns_of(text) <= room else f"{cut_to(text, room - 2)}.." for text in texts]
    for _ in range(_ROUNDS):  # those that still look the same differ further on
        alike: dict[str, set[str]] = {}
        for text, short in zip(texts, cut, strict=True):
            alike.setdefault(short, set()).add(text)
        cut = [
            short if len(alike[short]) == 1 else cut_to(_from_difference(text, _same(alike[short]), room), room)
            for text, short in zip(texts, cut, strict=True)
        ]
    return cut


def _same(texts: Collection[str]) -> int:
    """How many characters all of them start with."""
    first, last = min(texts), max(texts)
    return next((i for i, (here, there) in enumerate(zip(first, last, strict=False)) if here != there), len(first))


def _from_difference(text: str, same: int, room: int) -> str:
    """The start of a text and, from the word in which it differs from others, as much as there is room for."""
    head = room // _HEAD
    left = room - head - 2
    start = max(text.rfind(sign, 0, same) + 1 for sign in _WORDS)
    start = max(head, min(max(start, same - left // 2), len(text) - left))
    rest = text[start:]
    return f"{text[:head]}..{rest if len(rest) <= left else f'{rest[: left - 2]}..'}"

"""Plots of characters, as lines: columns above an axis, however many there are, and what signs stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

from dptune.present.lines import Line, Role, Span

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_LEVEL = "┄"
_FLAG = "▲"
_WIDEST = 6  # cells of a column with the gap beside it
Sign = tuple[str, Role]


class Column(NamedTuple):
    """How high it is. `flag`: marked below the axis line; `label`: words that start below it."""

    value: float
    role: Role = "plain"
    flag: bool = False
    label: str = ""


def columns(
    drawn: Sequence[Column], width: int, rows: int, top: float, level: float, words: Callable[[float], str]
) -> Iterator[Line]:
    """Columns from 0 to `top`, higher ones cut off there, with a line at `level`; `words` says a value.

    Where there are more columns than cells, neighbours share one: the highest of them is drawn.
    """
    at_level = min(int(level / top * rows), rows - 1)
    names = {rows - 1: words(top), at_level: words(level), -1: "0"}
    left = max(map(len, names.values())) + 1
    room = max(width - left - 2, 1)
    merged = _merged(drawn, room)
    each = max(min(room // max(len(merged), 1), _WIDEST), 1)
    heights = [min(max(round(column.value / top * rows * 8), 1), rows * 8) for column in merged]
    for row in reversed(range(rows)):
        empty: Sign = (_LEVEL if row == at_level else " ", "dim")
        filled = (_EIGHTHS[min(max(height - 8 * row, 0), 8)] for height in heights)
        signs = [
            empty if sign == " " else (sign * max(each - 1, 1), column.role)
            for sign, column in zip(filled, merged, strict=True)
        ]
        yield Span(f"{names.get(row, ''):>{left}} │", "dim"), *_joined(signs, each, empty[0])
    flags: list[Sign] = [(_FLAG, "error") if column.flag else ("─", "dim") for column in merged]
    yield Span(f"{names[-1]:>{left}} └", "dim"), *_joined(flags, each, "─")
    yield (Span(f"{'':{left + 2}}{_labels(merged, each, room)}".rstrip(), "dim"),)


def _labels(drawn: Sequence[Column], each: int, room: int) -> str:
    """The labels below their columns; one that has no room is left out."""
    cells, free = [" "] * room, 0
    for start, label in ((at * each, column.label) for at, column in enumerate(drawn)):
        end = start + len(label)
        if label and free <= start and end <= room:
            cells[start:end] = label
            free = end + 1
    return "".join(cells)


def _merged(drawn: Sequence[Column], room: int) -> list[Column]:
    """As many columns as there is room for."""
    if len(drawn) <= room:
        return list(drawn)
    found = []
    for low, high in pairwise(round(at * len(drawn) / room) for at in range(room + 1)):
        group = drawn[low:high]
        highest = max(group, key=lambda column: column.value)
        label = next((column.label for column in group if column.label), "")
        found.append(highest._replace(flag=any(column.flag for column in group), label=label))
    return found


def _joined(signs: Iterable[Sign], each: int, between: str) -> Iterator[Span]:
    """The signs, each filled up to its cells; neighbours of one role are one span."""
    cells: list[Sign] = []
    for text, role in signs:
        cells += [(text, role), (between * (each - len(text)), "dim")]
    for role, group in groupby(filter(lambda cell: cell[0], cells), lambda cell: cell[1]):
        yield Span("".join(text for text, _ in group), role)


def legend(parts: Iterable[tuple[str, Role, str]], width: int, indent: str) -> Iterator[Line]:
    """What signs stand for, as many beside each other as fit."""
    row: list[Span] = [Span(indent)]
    for sign, role, words in parts:
        text = f" {words}  "
        used = sum(len(span.text) for span in row)
        if len(row) > 1 and used + len(sign) + len(text.rstrip()) > width:
            yield tuple(row)
            row = [Span(indent)]
        row += [Span(sign, role), Span(text, "dim")]
    yield tuple(row)

"""Recordings as a table with a bar for each step time."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import PurePath

from dptune.history import Entry, History
from dptune.present.amounts import Hole, number, several
from dptune.present.columns import columns_of
from dptune.present.lines import BLANK, Line, command_line, wrapped
from dptune.present.script_name import script_name
from dptune.present.table import Cell, Column, table

_BAR = 8
_COMMIT_DIGITS = 8
_NO_COMMIT = Hole("recorded outside of a git repository, or by an older dptune", "not known")


def page(history: History, width: int) -> Iterator[Line]:
    """The table, what could not be read, and the commands to open and compare recordings."""
    read = [entry for entry in history.entries if not entry.error]
    if read:
        columns, rows = _table(read)
        if _natural_width(columns, rows) > width:  # names and verdicts rather than bars
            bar = next(i for i, column in enumerate(columns) if not column.heading)
            columns, rows = columns[:bar] + columns[bar + 1 :], [row[:bar] + row[bar + 1 :] for row in rows]
        yield from table(columns, rows, width, " ")
    if history.earlier:
        yield from wrapped(
            f"{several(history.earlier, 'older recording')} not listed: --last 0", width, " ", role="dim"
        )
    if any(entry.traced for entry in read):
        words = "~ traced: includes profiler overhead; no untraced steps were timed"
        yield from wrapped(words, width, " ", role="dim")
    for entry in history.entries:
        if entry.error:
            yield from wrapped(f"{PurePath(entry.folder).name}: {entry.error}", width, " ", "   ", "warning")
    yield from _commands(read, width)


def _natural_width(columns: list[Column], rows: list[list[Cell]]) -> int:
    """Of the table with nothing cut, two spaces between columns."""
    widths = [
        max(len(column.heading), *(columns_of(str(row[i])) for row in rows if not isinstance(row[i], Hole)), 0)
        for i, column in enumerate(columns)
    ]
    return 1 + sum(widths) + 2 * (len(widths) - 1)


def _commands(read: list[Entry], width: int) -> Iterator[Line]:
    if not read:
        return
    yield BLANK
    yield from command_line("Open", f"dptune report {shlex.quote(read[-1].folder)}", width)
    *earlier, latest = read
    alike = [entry for entry in earlier if _job(entry) == _job(latest)]
    if alike:
        before, after = (shlex.quote(entry.folder) for entry in (alike[-1], latest))
        yield from command_line("Compare", f"dptune compare {before} {after}", width)


def _job(entry: Entry) -> tuple[int | None, str]:
    """What two recordings that can be compared have in common: ranks and script."""
    return entry.ranks, script_name(entry.command)


def _table(read: list[Entry]) -> tuple[list[Column], list[list[Cell]]]:
    """Columns and rows; without the time where each folder's name has it, and without ranks where all have the same."""
    longest_ns = max((entry.step_ns or 0 for entry in read), default=0)
    dated = all(entry.recorded[:10] and PurePath(entry.folder).name.startswith(entry.recorded[:10]) for entry in read)
    columns: list[tuple[str, bool, int, list[Cell]]] = [
        ("recorded", False, 0, [] if dated else [_recorded(entry) for entry in read]),
        ("run", False, 16, [PurePath(entry.folder).name for entry in read]),
        ("commit", False, 0, [_commit(entry) for entry in read]),
        ("ranks", True, 0, [_ranks(entry) for entry in read] if len({entry.ranks for entry in read}) > 1 else []),
        ("step ms", True, 0, [_step(entry) for entry in read]),
        ("", False, 0, ["█" * round(_BAR * (entry.step_ns or 0) / (longest_ns or 1)) for entry in read]),
        ("samples/s", True, 0, [_samples(entry) for entry in read]),
        ("verdict", False, 10, [entry.label for entry in read]),
    ]
    kept = [(Column(name, right, least), cells) for name, right, least, cells in columns if cells]
    return [column for column, _ in kept], [[cells[row] for _, cells in kept] for row in range(len(read))]


def _recorded(entry: Entry) -> Cell:
    return entry.recorded[5:16].replace("T", " ") or Hole("its run.json does not show when")


def _commit(entry: Entry) -> Cell:
    dirty = "+" if entry.commit.endswith("+") else ""
    return entry.commit.removesuffix("+")[:_COMMIT_DIGITS] + dirty if entry.commit else _NO_COMMIT


def _ranks(entry: Entry) -> Cell:
    return "?" if entry.ranks is None else f"{entry.ranks:,}"


def _step(entry: Entry) -> Cell:
    return f"{'~' if entry.traced else ''}{number(entry.step_ns / 1e6)}" if entry.step_ns else Hole("no steps found")


def _samples(entry: Entry) -> Cell:
    return f"{entry.samples_per_s:,.0f}" if entry.samples_per_s else Hole("batch size not known")

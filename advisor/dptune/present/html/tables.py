"""Tables that a click on a header sorts: every kernel, collective and rank of the report."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dptune.advice import Report
from dptune.present.amounts import Hole, several
from dptune.present.first_screen import reported_straggler
from dptune.present.html.charts import MOST_ROWS
from dptune.present.html.markup import Section, note, text
from dptune.present.process_groups import group_rows
from dptune.present.sections import kernels, ranks, traffic
from dptune.present.table import Cell, Column, absent_throughout

_MOST_ROWS = 2_000
TALL = 24  # rows: a longer table scrolls inside the page; on paper the rest is left out
_LONG = 60  # characters: a longer name is cut off after its second line
_FIGURE = re.compile(r"[~<]?(-?[\d,]+(?:\.\d+)?)(?: ?(%|ms|us|bytes|KiB|MiB|GiB))?")
_BYTES = {"KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}


def sorted_by(cell: Cell) -> str | None:
    """What a cell is sorted by: its figure, else its text; None where there is no figure."""
    if isinstance(cell, Hole):
        return None
    figure = _FIGURE.fullmatch(cell)
    if figure is None:
        return cell
    value = float(figure[1].replace(",", "")) * _BYTES.get(figure[2] or "", 1)
    return f"{value * (0.5 if cell.startswith('<') else 1):g}" if abs(value) < 1e5 else f"{value:.0f}"


def table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], caption: str, late: str = "") -> str:
    """The rows under their headings. A column without any figure is left out, with the reason below.

    Rows that begin with `late` are marked.
    """
    if not rows:
        return ""
    left_out = absent_throughout(rows)
    kept = [i for i in range(len(columns)) if i not in left_out]
    head = "".join(f'<th scope="col"{_side(columns[i])}>{text(columns[i].heading)}</th>' for i in kept)
    looks = (' class="late"' if late and row[0] == late else "" for row in rows)
    body = "".join(
        f"<tr{look}>{''.join(_cell(columns[i], row[i]) for i in kept)}</tr>"
        for row, look in zip(rows[:_MOST_ROWS], looks, strict=False)
    )
    headings: dict[Hole, list[str]] = {}
    for i, hole in left_out.items():
        headings.setdefault(hole, []).append(columns[i].heading)
    reasons = [f"{', '.join(names)} {hole}" for hole, names in headings.items()]
    holes = dict.fromkeys(
        str(cell) for row in rows for i, cell in enumerate(row) if i in kept and isinstance(cell, Hole)
    )
    tall = " tall" if len(rows) > TALL else ""
    more, printed = f"Scroll for all {len(rows):,} rows.", f"The first {TALL} of {len(rows):,} rows."
    if len(rows) > _MOST_ROWS:
        more = f"The first {_MOST_ROWS:,} of {len(rows):,} rows."
    notes = f'<div class="screen">{note(more)}</div><div class="paper">{note(printed)}</div>' if tall else ""
    opening = f'<div class="scroll table{tall}" tabindex="0" role="region" aria-label="{text(caption)}">'
    return (
        f'{opening}<table class="sortable"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        f"{notes}{''.join(note(reason) for reason in [*reasons, *holes])}"
    )


def _side(column: Column) -> str:
    return ' class="right"' if column.right else ""


def _cell(column: Column, cell: Cell) -> str:
    value = sorted_by(cell)
    if value is None:
        return f'<td{_side(column)}><abbr title="{text(cell)}">-</abbr></td>'
    order = "" if value == cell else f' data-v="{text(value)}"'
    shown = f'<span class="clip" title="{text(cell)}">{text(cell)}</span>' if len(cell) > _LONG else text(cell)
    return f"<td{_side(column)}{order}>{shown}</td>"


def kernel_table(report: Report) -> Iterator[Section]:
    """The kernels with the most time; of a CPU the operators."""
    found = report.measured.known("kernels")
    if found is None or not found.top:
        return
    noun = found.counted.capitalize()
    columns = kernels.columns(report.measured, found)
    body = table(columns, [kernels.row(kernel) for kernel in found.top], noun)
    longest = f"The {several(len(found.top), found.counted.removesuffix('s'))} with the most time."
    title = f"{noun}{kernels.of_recording(report.measured)} (traced times)"
    yield Section("kernel-table", title, noun, f"{body}{note(f'{longest} {kernels.words(report.measured, found)}')}")


def collective_table(report: Report) -> Iterator[Section]:
    """Every collective, by kind and size."""
    found = report.measured.known("collectives")
    if not found:
        return
    groups = report.measured.process_groups
    body = table(traffic.COLLECTIVES, [traffic.collective(row, groups) for row in found], "Collectives")
    meant = "".join(note(f"Process group {row}") for row in group_rows(groups))
    yield Section(
        "collective-table",
        f"Collectives{kernels.of_recording(report.measured)} (traced times)",
        "Collectives",
        f"{body}{note(traffic.collective_words(report.measured, found))}{meant}",
    )


def rank_table(report: Report) -> Iterator[Section]:
    """Every rank and device."""
    rows = list(ranks.rank_rows(report))
    if not rows:
        return
    order = ""
    if len(rows) > MOST_ROWS:  # the late ones would be out of sight
        rows, order = ranks.late_first(report, rows)
    straggler = reported_straggler(report)
    late = "" if straggler is None else str(straggler)
    remarks = "".join(note(remark) for remark in ranks.rank_remarks(report))
    body = f"{table(ranks.COLUMNS, rows, 'Ranks', late)}{note(order)}{note(ranks.words(report, rows))}{remarks}"
    yield Section("rank-table", f"Ranks ({len(report.measured.ranks):,})", "Rank table", body)

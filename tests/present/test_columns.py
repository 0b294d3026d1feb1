"""Text that takes other columns than it has characters: CJK, emoji, combining marks."""

from __future__ import annotations

from functools import partial

import pytest
from rich.cells import cell_len

from dptune.measure.host_ranges import Nested
from dptune.present.columns import both_ends, by_column, columns_of, cut_to, padded
from dptune.present.ink import paint
from dptune.present.lines import wrapped
from dptune.present.table import Column, table
from dptune.present.tui.rows import Row, level_cells, painted_row
from dptune.present.visible import visible

KERNEL = "名前の長いカーネル"
TEXTS = ("plain", KERNEL, "e\u0301te\u0301", "a\N{ROCKET}b", "한국어", "")


@pytest.mark.parametrize("text", TEXTS)
def test_columns_are_those_of_a_terminal(text: str) -> None:
    assert columns_of(text) == cell_len(text) == len(by_column(text))
    assert "".join(by_column(text)) == text
    assert cell_len(padded(text, 30)) == cell_len(padded(text, 30, right=True)) == 30


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("room", [0, 1, 4, 5, 9])
def test_a_cut_text_fits(text: str, room: int) -> None:
    assert cell_len(cut_to(text, room)) <= room
    assert text.startswith(cut_to(text, room))


def test_both_ends_of_a_long_name() -> None:
    assert both_ends("start_of_a_long_name_and_its_end", 16) == "start_o..its_end"
    assert cell_len(both_ends(KERNEL * 3, 15)) <= 15
    assert both_ends(KERNEL, 18) == KERNEL


@pytest.mark.parametrize("width", [20, 41, 80])
def test_lines_of_wide_characters_fit_the_page(width: int) -> None:
    text = f"rank 2 runs `{KERNEL * 12}` for 12 ms"
    rows = paint(wrapped(text, width, " "), colour=False).splitlines()
    assert all(cell_len(row) <= width for row in rows)
    assert KERNEL * 12 in "".join(row.removeprefix(" ") for row in rows)


def test_columns_of_a_table_stand_under_each_other() -> None:
    names = Column("name", right=False, least=8)
    page = paint(table((names, Column("ms")), [[KERNEL * 4, "1.0"], ["gemm", "22.0"]], 30), colour=False)
    assert {cell_len(row) for row in page.splitlines()} == {30}


@pytest.mark.parametrize("columns", [7, 8, 40])
def test_a_row_of_the_timeline_is_as_wide_as_its_columns(columns: int) -> None:
    level = (Nested(name=KERNEL, kind="range", start_ns=0, end_ns=100, depth=0),)
    row = Row(KERNEL * 2, (0,), partial(level_cells, level, 0, 100, columns), level=level)
    plain = Row("thread", (0,), partial(level_cells, (), 0, 100, columns), level=level)
    (drawn,), (usual,) = (list(painted_row(each, columns // 2, chosen=True)) for each in (row, plain))
    assert drawn.cell_len == usual.cell_len


def test_a_hidden_character_takes_the_columns_of_its_code() -> None:
    assert columns_of(visible("\u202e\x1b")) == len(r"\u202e\x1b")

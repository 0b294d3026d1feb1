from __future__ import annotations

from dptune.present.amounts import Hole
from dptune.present.ink import paint
from dptune.present.table import Column, table

COLUMNS = (Column("name", right=False, least=8), Column("ms"), Column("bytes"))


def drawn(rows: list[list[str | Hole]], width: int = 60) -> str:
    return paint(table(COLUMNS, rows, width), colour=False)


def test_numbers_stand_under_each_other() -> None:
    assert drawn([["a", "1.0", "5"], ["bc", "10.0", "512"]]) == (
        "  name    ms  bytes\n"  #
        "  a      1.0      5\n"
        "  bc    10.0    512\n"
    )


def test_a_hole_is_a_letter_with_its_reason_below() -> None:
    page = drawn([["a", Hole("it was cut off"), "5"], ["b", "2.0", "5"], ["c", Hole("it was cut off"), "5"]])
    assert page.count("[a]") == 3
    assert "[a] not measured: it was cut off" in page


def test_a_column_nobody_has_is_left_out_and_named() -> None:
    page = drawn([["a", Hole("never timed"), "5"], ["b", Hole("never timed"), "6"]])
    assert page.splitlines()[0].split() == ["name", "bytes"]
    assert "ms not measured: never timed" in page


def test_columns_that_nobody_has_for_one_reason_are_named_together() -> None:
    page = drawn([["a", Hole("never read"), Hole("never read")]])
    assert page.splitlines()[1:] == ["  a", "  ms, bytes not measured: never read"]


def test_a_long_name_is_cut_where_the_page_is_narrow() -> None:
    page = drawn([["a_kernel_with_a_very_long_name_indeed", "1.0", "5"]], width=40)
    assert all(len(line) <= 40 for line in page.splitlines())
    assert "a_kernel_with" in page
    assert ".." in page


def test_a_page_too_narrow_for_columns_gets_sentences() -> None:
    page = drawn([["a_kernel", "1,000,000.0", "5"]], width=26)
    assert page == "  name a_kernel, ms\n    1,000,000.0, bytes 5\n"


def test_a_name_cannot_forge_a_row() -> None:
    assert len(drawn([["a\n  forged  1.0  5", "1.0", "5"]]).splitlines()) == 2


def test_names_that_start_alike_are_cut_before_the_place_they_differ_at() -> None:
    """Some differ early, and others of these only later on; what is cut says so on both sides."""
    start, end = "sm80_xmma_gemm_f32f32_f32f32_f32_", "_stage3_warpsize2x2x1_execute_kernel"
    names = [f"{start}{middle}{end}" for middle in ("tn_n_tile128x32x8", "tn_n_tile128x64x8", "nt_n_tile128x64x8")]
    rows = drawn([[name, "1.0", "5"] for name in names], width=48).splitlines()[1:]
    shown = [row.split()[0] for row in rows]
    assert len(set(shown)) == 3
    assert all(name.startswith("sm80_xmma") and ".." in name for name in shown)
    assert "tile128x32x8" in shown[0]
    assert "tile128x64x8" in shown[1]
    assert "nt_n_tile" in shown[2]
    assert all(len(row) <= 48 for row in rows)
    same = drawn([[names[0], "1.0", "5"], [names[0], "2.0", "5"]], width=48).splitlines()[1:]
    assert {row.split()[0] for row in same} == {f"{names[0][: len(same[0].split()[0]) - 2]}.."}, (
        "nothing sets them apart"
    )

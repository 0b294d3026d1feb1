"""The classes of a step's time have the same names, signs and colors everywhere."""

from __future__ import annotations

from dptune import measured
from dptune.advice import Report
from dptune.present.html.ranks import ranks
from dptune.present.html.style import COLORS
from dptune.present.sections.breakdown import account
from dptune.present.sections.first import first
from dptune.present.step_classes import CLASSES, PARTS, cells, color_of, in_ascii, part_of
from dptune.present.tui.rows import SIGNS

from .. import reading  # noqa: TID252 - tests are no installed package


def test_every_class_is_named_once_and_belongs_to_a_part() -> None:
    assert {kind.field for kind in CLASSES} == {*measured.CLASSES}
    assert len({kind.name for kind in CLASSES}) == len(CLASSES)
    shown = [field for part in PARTS for field in part.classes if field != "other_idle_ns"]
    assert {part_of(field).name for field in measured.CLASSES if field not in shown} == {"idle"}


def test_the_breakdown_has_the_signs_of_the_first_screen() -> None:
    _, report = reading.sample("accumulation_without_no_sync")
    blocks = {part.block for part in PARTS}
    above = {span.text[0] for row in first(report, 80) for span in row if span.text[:1] in blocks}
    below = {span.text.strip()[:1] for row in account(report, 80) for span in row}
    assert above <= below & blocks
    assert {row[0].text.strip(): row[1].text.split()[0] for row in account(report, 80) if len(row) == 3}[
        "▓"
    ] == "exposed"


def test_the_timeline_has_these_signs_too() -> None:
    blocks = {part.name: part.block for part in PARTS}
    assert SIGNS["compute"].sign == blocks["compute"]
    assert SIGNS["communication"].sign == blocks["exposed comm"]
    assert SIGNS["copy"].sign == SIGNS["memset"].sign == blocks["copies"]
    assert SIGNS["loader"].sign == blocks["input"]


def test_the_page_has_a_color_for_each_and_it_is_that_of_the_part(report: Report) -> None:
    for part in PARTS[:-1]:
        assert part.color == color_of(part.classes[0])
    assert COLORS["loader"] == color_of("input_idle_ns")
    (section,) = ranks(report)
    assert color_of("compute_ns") in section.body


def test_a_bar_has_as_many_cells_as_there_is_room() -> None:
    shares = [(part, 1 / len(PARTS)) for part in PARTS]
    assert sum(len(span.text) for span in cells(shares, 40)) == 40


def test_each_part_has_a_sign_and_a_color_of_its_own() -> None:
    blocks = "".join(part.block for part in PARTS)
    assert len({*blocks}) == len({part.color for part in PARTS}) == len(PARTS)
    assert in_ascii(blocks).isascii()
    assert len({*in_ascii(blocks)}) == len(blocks)
    assert in_ascii("train.py · 2 ranks") == "train.py, 2 ranks"

"""What the table of collectives says of how sure the matching across ranks is."""

import pytest

from dptune.advice import Report
from dptune.measured import CollectiveFigures, MatchBasis
from dptune.present.sections.traffic import collectives

ORDER = "Calls without a sequence number are matched across ranks by order."
SHIFT = "~ approximate: ranks recorded different calls"


def collective(matched: MatchBasis | None, transfer_ns: int | None = 2_000_000) -> CollectiveFigures:
    return CollectiveFigures.only(
        "not needed",
        kind="all_reduce",
        calls=80,
        calls_per_step=8,
        median_ns=2_600_000,
        shortest_ns=2_000_000,
        total_ns=210_000_000,
        matched=matched,
        transfer_ns=transfer_ns,
        busbw_gb_per_s=None if transfer_ns is None else 13.1,
    )


def said(report: Report, *rows: CollectiveFigures) -> list[str]:
    measured = report.measured.model_copy(update={"collectives": list(rows)})
    shown = collectives(report.model_copy(update={"measured": measured}), 1000)
    return ["".join(span.text for span in line) for line in shown]


def test_the_surest_matching_is_not_told(report: Report) -> None:
    page = said(report, collective("sequence"))
    assert page[3].endswith("2.60      2.00  13.1")
    assert page[-1].endswith("(busbw of nccl-tests).")


def test_matching_by_order_is_told_once(report: Report) -> None:
    page = said(report, collective("order"), collective("order"), collective("sequence"))
    assert [row.split()[-2:] for row in page[3:6]] == [["2.00", "13.1"]] * 3
    assert page[-1].endswith(f"(busbw of nccl-tests). {ORDER}")
    assert page[-1].count(ORDER) == 1


def test_rows_that_rest_on_a_shift_are_marked(report: Report) -> None:
    page = said(report, collective("sequence"), collective("shift"))
    assert [row.split()[-2:] for row in page[3:5]] == [["2.00", "13.1"], ["~2.00", "~13.1"]]
    assert SHIFT in page[-1]
    assert ORDER not in page[-1]


@pytest.mark.parametrize("matched", ["shift", "order"])
def test_matching_that_no_figure_shown_rests_on_is_not_told(report: Report, matched: MatchBasis) -> None:
    assert said(report, collective(matched, transfer_ns=None))[-1].endswith("(busbw of nccl-tests).")


def test_a_report_that_does_not_say_how_calls_were_matched_is_shown(report: Report) -> None:
    page = said(report, collective(None))
    assert page[3].endswith("2.60      2.00  13.1")
    assert page[-1].endswith("(busbw of nccl-tests).")


def test_calls_are_those_of_a_rank_of_the_group(report: Report) -> None:
    row = collective("order")
    missing = {name: why for name, why in row.missing.items() if name != "calls_per_member"}
    page = said(report, row.model_copy(update={"calls_per_member": 16.0, "missing": missing}))
    assert page[3].split()[-4:] == ["16", "2.60", "2.00", "13.1"]
    assert "Calls are per step and rank of the group." in page[-1]
    assert "Calls are per step and rank. " in said(report, row)[-1]

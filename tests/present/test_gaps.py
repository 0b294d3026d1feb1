"""What a report says of a gap: how long, why, between which operations, and what the host was mostly in."""

from __future__ import annotations

from dptune.advice import Report
from dptune.measured import GapFigures
from dptune.present.sections.gaps import gaps


def said(report: Report, **known: str) -> str:
    where = {"rank": 1, "device": "cuda:1", "step": 7, "start_ns": 0, "length_ns": 4_000_000}
    gap = GapFigures.only("not recorded", **where, causes_ns={"sync": 3_000_000, "host": 1_000_000}, **known)
    measured = report.measured
    missing = {name: why for name, why in measured.missing.items() if name != "gaps"}
    changed = measured.model_copy(update={"gaps": [gap], "missing": missing})
    lines = gaps(report.model_copy(update={"measured": changed}), 200)
    return " ".join("".join(span.text for span in line).strip() for line in lines)


def test_a_gap_and_what_lies_around_it(report: Report) -> None:
    assert (
        "4.00 ms rank 1, step 7: blocking call 75.0 %, host 25.0 % after gemm, before relu; host mostly in aten::item"
        in " ".join(said(report, before="gemm", after="relu", meanwhile="aten::item").split())
    )


def test_what_is_not_known_is_not_named(report: Report) -> None:
    text = said(report)
    assert "host 25.0 % at the end of the step" in text
    assert "mostly" not in text

"""What a report says of a gap: how long, why, between which operations, and what the host was mostly in."""

from __future__ import annotations

from dptune.advice import Report
from dptune.measure.host_ranges import Nested
from dptune.measured import GapFigures
from dptune.present.sections.gaps import gaps
from dptune.present.tui.under_cursor import inside


def said(report: Report, length_ns: int = 4_000_000, **known: str) -> str:
    where = {"rank": 1, "device": "cuda:1", "step": 7, "start_ns": 0, "length_ns": length_ns}
    gap = GapFigures.only("not recorded", **where, causes_ns={"sync": 3_000_000, "host": 1_000_000}, **known)
    measured = report.measured
    missing = {name: why for name, why in measured.missing.items() if name != "gaps"}
    changed = measured.model_copy(update={"gaps": [gap], "missing": missing})
    lines = gaps(report.model_copy(update={"measured": changed}), 200)
    return " ".join("".join(span.text for span in line).strip() for line in lines)


def test_a_gap_and_what_lies_around_it(report: Report) -> None:
    assert (
        "4.00 ms rank 1, step 7: blocking call 75.0 %, host 25.0 % after gemm before relu host in aten::item"
        in " ".join(said(report, before="gemm", after="relu", meanwhile="aten::item").split())
    )


def test_what_the_host_was_in_has_its_whole_name(report: Report) -> None:
    """Brackets of a range or an operator hold no arguments of C++."""
    within = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    text = " ".join(said(report, before="gemm(int)", meanwhile=within).split())
    assert "after gemm at" in text
    assert text.endswith(f"host in {within}")
    assert inside([Nested(within, "range", 0, 2_000_000, 0)]) == f"{within} (2.00 ms)"


def test_what_is_not_known_is_not_named(report: Report) -> None:
    text = " ".join(said(report).split())
    assert "host 25.0 % at the end of the step" in text
    assert "after" not in text
    assert "host in" not in text
    assert "before relu (the first operation)" in " ".join(said(report, after="relu").split())


def test_gaps_of_less_than_a_thousandth_of_a_step_are_one_sentence(report: Report) -> None:
    step_ns = report.measured.traced_step_ns
    words = said(report, length_ns=step_ns // 1000 - 1, after="relu")
    assert f"None takes 0.1 % of a step; the longest lasts {step_ns / 1e9:.2f} ms on rank 1 in step 7." in words
    assert "relu" not in words
    assert "None takes" not in said(report, length_ns=step_ns // 1000 + 1)

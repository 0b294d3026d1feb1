"""The section on links: what it shows of each fit, and what it says where there is none."""

from __future__ import annotations

import pytest

from dptune.advice import Report
from dptune.measured import LinkFigures, LinkSize
from dptune.present.sections.links import swept
from dptune.present.text import text
from dptune.runfile.links import KindTimes, LinkRecord, SizeTimes

WHY = "2 message sizes: a fit needs at least 3"


def fit(**more: object) -> LinkFigures:
    size = LinkSize(message_bytes=4096, calls=4, median_ns=9, q1_ns=8, q3_ns=10)
    known = {"kind": "all_reduce", "ranks": [0, 1, 2, 3], "scope": "inter-node", "basis": "trace", "calls": 4}
    return LinkFigures.only(WHY, **{**known, "sizes": [size], **more})


FITTED = {
    "group": "dp",
    "alpha_us": 20.8,
    "busbw_gb_per_s": 303.4,
    "busbw_low_gb_per_s": 0.01234,
    "busbw_high_gb_per_s": 304.7,
    "peak_gb_per_s": 450.0,
    "confidence": "high",
}


def page(report: Report, links: list[LinkFigures]) -> str:
    shown = report.model_copy(update={"measured": report.measured.model_copy(update={"links": links})})
    whole = text(shown, 100)
    section = whole.partition("\nLinks: latency and bandwidth between ranks\n")[2].partition("\n\nCopies")[0]
    return " ".join(section.split())


def test_a_fit_is_a_row(report: Report) -> None:
    said = page(report, [fit(**FITTED)])
    assert "kind group ranks hosts sizes alpha us GB/s low high peak confidence all_reduce dp 0-3 many 1" in said
    assert "20.8 303.4 0.0123 304.7 450.0 high" in said
    assert "By a sweep" not in said


def test_what_all_rows_share_is_said_once(report: Report) -> None:
    said = page(report, [fit(**FITTED), fit(**{**FITTED, "kind": "all_gather"})])
    assert "kind sizes alpha us GB/s low high peak confidence all_reduce 1 20.8" in said
    assert "All rows: group dp, ranks 0-3, hosts many." in said


def test_what_is_not_fitted_says_why(report: Report) -> None:
    assert f"not measured: {WHY}" in page(report, [fit(), fit(**FITTED)])


def test_where_nothing_is_fitted_one_sentence_says_why(report: Report) -> None:
    other = "every call overlapped another collective"
    shared = LinkFigures.only(
        other,
        **{"kind": "broadcast", "ranks": [0, 1], "scope": "unknown", "basis": "trace", "calls": 0, "sizes": []},
        shared_calls=9,
    )
    assert page(report, [fit(), fit(), shared]) == (
        f"No fit from the run's own collectives: {WHY}; {other}. Run `dptune links` to measure the link."
    )


def test_a_sweep_beside_collectives_that_cannot_be_fitted(report: Report) -> None:
    said = page(report, [fit(), fit(**FITTED, basis="sweep", source="links.json")])
    assert said.startswith(f"No fit from the run's own collectives: {WHY}. By a sweep of")
    assert "Model: time = alpha + bytes / beta." in said
    said = page(report, [fit(basis="sweep", source="links.json")])
    assert said == f"No fit from the sweep: {WHY}."


def test_a_sweep_stands_apart_and_is_named(report: Report) -> None:
    sweep = fit(**FITTED, basis="sweep", source="dptune-runs/links.json", measured="2026-11-20")
    said = page(report, [fit(**FITTED), sweep])
    own, _, swept = said.partition("By a sweep of `dptune links`:")
    assert own.startswith("From the run's own collectives:")
    assert "all_reduce dp 0-3 many 1 20.8" in own
    assert "kind ranks hosts sizes" in swept
    assert "all_reduce 0-3 many 1 20.8" in swept
    assert "Sweep: dptune-runs/links.json, measured 2026-11-20, 23 hours before this run." in swept


@pytest.mark.parametrize("measured", ["2026-11-20T23:31:40", "2026-11-21", "2026-11-20T10:00:00+00:00", "a while ago"])
def test_a_sweep_has_an_age_only_where_it_is_known_to_be_older(report: Report, measured: str) -> None:
    """Made after the run, in the same minute, or at a time that cannot be compared with the run's, which has none."""
    said = page(report, [fit(**FITTED, basis="sweep", source="links.json", measured=measured)])
    assert f"Sweep: links.json, measured {measured}." in said


def test_calls_left_out_are_counted(report: Report) -> None:
    said = page(report, [fit(**FITTED, shared_calls=3), fit(**FITTED, shared_calls=4)])
    assert "7 calls excluded: they overlapped another collective of the same ranks." in said


def test_groups_that_do_not_fit_on_the_page_are_counted(report: Report) -> None:
    assert "and 3 more groups: see --format json" in page(report, [fit(**FITTED)] * 15)


def test_without_any_the_reason(report: Report) -> None:
    assert "Links: latency and bandwidth between ranks not measured: no second rank was read" in " ".join(
        text(report).split()
    )


def test_of_a_sweep_times_of_calls_asked_for_at_once_stand_apart() -> None:
    alone, together = SizeTimes(4096, 5e-3, 4e-3, 6e-3, 5, 50), SizeTimes(4096, 2e-3, 1e-3, 3e-3, 5, 160)
    kind = KindTimes("all_reduce", [0, 1], [alone], [together])
    record = LinkRecord(backend="gloo", world_size=2, hosts=["a", "b"], devices=["cpu", "cpu"], kinds=[kind])
    said = " ".join("".join(piece.text for piece in line) for line in swept([fit(**FITTED)], record, 80))
    own, _, rest = " ".join(said.split()).partition("Per call, when many are queued back to back (like DDP buckets)")
    assert "all_reduce 4.00 KiB 5.00" in own
    assert "all_reduce 4.00 KiB 2.00" in rest
    record.kinds[0].queued = []
    assert not any("back to back" in piece.text for line in swept([fit(**FITTED)], record, 80) for piece in line)

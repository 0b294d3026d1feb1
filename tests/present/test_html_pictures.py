"""Pictures and tables of the page: to scale, in order, with the words that go with them."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from dptune.advice import Report, Verified
from dptune.measure.lanes import Idle, Lane, Piece, StepLanes, unnamed
from dptune.measure.steps.history import TimedStep, WindowHistory
from dptune.measured import (
    CommunicationFigures,
    KernelFigures,
    KernelTime,
    LinkFigures,
    LinkSize,
    Measured,
    OverlapFigures,
    StepLag,
    StragglerFigures,
)
from dptune.present.amounts import Hole
from dptune.present.html import RunDetails, charts, page
from dptune.present.html.changes import changes
from dptune.present.html.communication import hidden_and_exposed, links
from dptune.present.html.kernels import kernel_classes
from dptune.present.html.ranks import lateness, ranks
from dptune.present.html.steps import history
from dptune.present.html.style import CSS
from dptune.present.html.tables import TALL, rank_table, sorted_by, table
from dptune.present.html.timeline import timeline
from dptune.present.ink import paint
from dptune.present.sections.overlap import named_rows, overlap, times
from dptune.present.table import Column
from dptune.testing import account, arrival, figures, measured_run

from .. import reading  # noqa: TID252 - tests are no installed package
from .test_html import LANES, read


def of(report: Report, measured: Measured) -> Report:
    return report.model_copy(update={"measured": measured})


def body(sections: object) -> str:
    (section,) = sections  # type: ignore[misc]
    read(section.body)
    return str(section.body).replace("&nbsp;", " ")


def elements(written: str, tag: str) -> list[ElementTree.Element]:
    return [found for svg in re.findall(r"<svg .*?</svg>", written) for found in ElementTree.fromstring(svg).iter(tag)]


def tooltips(written: str) -> list[str]:
    return [title.text or "" for title in elements(written, "title")]


def link(basis: str, peak: float | None) -> LinkFigures:
    sizes = [
        LinkSize(message_bytes=4**n * 1024, calls=9, median_ns=50_000 + 4**n * 100, q1_ns=1, q3_ns=9) for n in range(6)
    ]
    known = {"alpha_us": 50.0, "algbw_gb_per_s": 10.0, "busbw_gb_per_s": 15.0, "peak_gb_per_s": peak}
    return LinkFigures.only(
        "it is not needed",
        kind="all_reduce",
        ranks=[0, 1],
        scope="intra-node",
        basis=basis,
        sizes=sizes,
        calls=9,
        **{name: value for name, value in known.items() if value is not None},
    )


def test_the_pieces_of_a_timeline_are_to_scale() -> None:
    written = body(timeline([LANES]))
    first, second, sliver = (
        {name: float(box.get(name, "")) for name in ("x", "width")} for box in elements(written, "rect")
    )
    assert first == {"x": 0, "width": 400}
    assert second["x"] == 500
    assert sliver["width"] == 0.5  # what is too short to be seen is seen
    assert "and 11 more: 4.00 ms, from 0 ms" in tooltips(written)[0]
    assert tooltips(written)[2].startswith("operator self time: ")


def test_two_ranks_share_a_time_axis() -> None:
    lane = [Lane("stream 7", [Piece(0, 4_000_000, "compute", "gemm", 1)])]
    late = StepLanes(3, 12, 8_000_000, lane, start_ns=2_000_000, lag_ns=3_000_000, late=True)
    usual = StepLanes(1, 12, 9_000_000, lane)
    written = body(timeline([late, usual]))
    boxes = [{name: float(box.get(name, "")) for name in ("x", "width")} for box in elements(written, "rect")]
    assert boxes == [{"x": 200, "width": 400}, {"x": 0, "width": 400}]
    assert "Rank 3 (straggler): 8.00 ms, 3.00 ms late" in written
    assert "Rank 3 (latest): 8.00 ms, 3.00 ms late" in body(timeline([late, usual], named=False))
    assert "Rank 1 (usual): 9.00 ms, not late" in written
    assert "Rank 3 arrives 3.00 ms late in this step; below it is rank 1" in written


def test_a_long_idle_time_is_put_in_words() -> None:
    lane = [Lane("stream 7", [Piece(0, 4_000_000, "compute", "gemm", 1)])]
    idle = Idle(4_000_000, 6_000_000, "# running <arch>")
    late = StepLanes(3, 12, 10_000_000, lane, late=True, idle=idle)
    written = body(timeline([late]))
    assert "Nothing runs for 6.00 ms, from 4.00 ms (inside # running &lt;arch&gt;)." in written
    usual = StepLanes(1, 12, 9_000_000, lane)
    beside = body(timeline([replace(late, start_ns=2_000_000), usual]))
    assert "Nothing runs for 6.00 ms, from 6.00 ms" in beside, "on the axis of both"
    assert [words.partition("from ")[2] for words in tooltips(beside)] == ["2.00 ms", "0 ms"]
    (hidden,) = [unnamed(late)]
    assert hidden.idle == Idle(4_000_000, 6_000_000)
    assert "Nothing runs for 6.00 ms, from 4.00 ms." in body(timeline([hidden]))


@pytest.mark.parametrize(("rows", "scrolls"), [(24, False), (25, True)])
def test_only_a_long_table_scrolls_inside_the_page_and_says_so(rows: int, scrolls: bool) -> None:
    written = table([Column("rank", right=True)], [[str(row)] for row in range(rows)], "Ranks")
    assert ('class="scroll table tall"' in written) is scrolls
    assert ("Scroll for all 25 rows." in written) is scrolls
    assert ("The first 24 of 25 rows." in written) is scrolls
    assert f"nth-child(n+{TALL + 1})" in CSS  # printed without the rest


def test_the_busiest_streams_are_drawn_where_they_are_many() -> None:
    many = [Lane(f"stream {n}", [Piece(0, 10 + n, "compute", "gemm", 1)]) for n in range(30)]
    written = body(timeline([StepLanes(0, 1, 100, many)]))
    assert written.count('<svg class="strip"') == 10
    assert "stream 29" in written
    assert "stream 5<" not in written
    assert "The 10 busiest of 30 streams and threads." in written


def test_a_step_without_lanes_is_left_out(report: Report) -> None:
    assert list(timeline([StepLanes(0, 1, 10, [])])) == []
    assert 'id="timeline"' not in page(report)


def test_the_parts_of_a_bar_are_as_wide_as_their_shares() -> None:
    parts = [
        charts.Part(0.75, "#009e73", "compute", "75 %"),
        charts.Part(0, "#000", ""),
        charts.Part(0.01, "#000", "", "1 %"),
    ]
    drawn = charts.bar(parts)
    assert re.findall(r"width:([\d.]+)%", drawn) == ["75.00", "1.00"]
    assert ">75 %<" in drawn
    assert "1 %" not in drawn  # no room for it


def test_a_part_is_named_in_the_bar_where_its_caption_is() -> None:
    drawn = charts.bar([charts.Part(0.9, "#009e73", "", "90 %", "a<b"), charts.Part(0.01, "#000", "", "1 %", "idle")])
    assert ">90 %<i>a&lt;b</i></span>" in drawn
    assert "idle" not in drawn


@pytest.mark.long
def test_the_latest_of_many_ranks_are_drawn_and_the_table_has_all(report: Report) -> None:
    """Rank 713 of 1,000 alone arrives late."""
    lags = [[3.0 if rank == 713 else 0.001 * rank] * 5 for rank in range(1000)]
    spent = [account(0.02 if rank == 713 else 0.2, 0.1, 0.0) for rank in range(1000)]
    measured = measured_run(
        world=1000,
        lags_ms=lags,
        spent=spent,
        straggler=figures(StragglerFigures, rank=713, lag_ns=3_000_000, steps_share=1.0, waiting_share=0.2),
    )
    report = of(report, measured)
    for written in (body(ranks(report)), body(lateness(report))):
        names = re.findall(r'<div class="name">r(\d+)[:<]', written)
        assert names == ["713", *(str(rank) for rank in range(969, 1000))]
        assert "32 of 1,000 ranks, those that arrive latest; the rank table has all." in written
    rows = body(rank_table(report))
    assert rows.count("<tr>") == 1001
    whole = page(report)
    assert "r0-712,714-999" in whole
    assert len(whole) < 500_000


@pytest.mark.long
def test_of_many_ranks_that_are_not_late_few_are_drawn(report: Report) -> None:
    """Rank 71 of 100 alone arrives late: seven others to compare it with are enough."""
    lags = [[3.0 if rank == 71 else 0.0] * 5 for rank in range(100)]
    measured = measured_run(world=100, lags_ms=lags, spent=[account(0.2, 0.1, 0.0)] * 100)
    for written in (body(ranks(of(report, measured))), body(lateness(of(report, measured)))):
        names = re.findall(r'<div class="name">r(\d+)[:<]', written)
        assert names == [*map(str, range(7)), "71"]
        assert "8 of 100 ranks, those that arrive latest; the rank table has all." in written
    table = body(rank_table(of(report, measured)))
    assert re.findall(r"<tr><td[^>]*>(\d+)<", table)[:3] == ["71", "0", "1"]
    assert "The ranks that arrive latest are first." in table


def test_each_label_of_an_axis_has_a_mark() -> None:
    drawn = charts.axis([charts.Tick(0, "0 ms"), charts.Tick(0.5, "5 ms")])
    assert re.findall(r'<i style="left:([\d.]+)%">', drawn) == ["0.00", "50.00"]
    assert drawn.count("<span") == 2


def test_small_lags_have_no_strong_color(report: Report) -> None:
    """A hundredth of a step late at most: full color is a twentieth of it."""
    measured = measured_run(lags_ms=[[0, 0], [0, 0]], steps=2)
    hundredth_ms = measured.traced_step_ns / 1e8
    measured = measured_run(lags_ms=[[0, 0], [0, hundredth_ms]], steps=2)
    written = body(lateness(of(report, measured)))
    assert max(float(box.get("fill-opacity", "1")) for box in elements(written, "rect")) == pytest.approx(
        0.06 + 0.94 / 5, abs=0.01
    )
    assert "no rank is later than" in written
    less = measured_run(lags_ms=[[0, 0], [0, hundredth_ms / 2]], steps=2)
    assert list(lateness(of(report, less))) == [], "nobody waits for that"


def test_a_cell_is_darker_where_the_rank_is_later(report: Report) -> None:
    measured = measured_run(lags_ms=[[0, 0], [5, 10]], steps=2)
    boxes = elements(body(lateness(of(report, measured))), "rect")
    assert [float(box.get("fill-opacity", "1")) for box in boxes] == [0.06, 0.06, 0.53, 1.0]
    assert "rank 1, step 1: 10.0 ms late" in tooltips(body(lateness(of(report, measured))))
    assert '<div class="name">r1: 7.50 ms</div>' in body(lateness(of(report, measured)))
    assert list(lateness(of(report, measured_run(lags_ms=[[0], [0]], steps=1)))) == []


def test_communication_is_split_by_what_hides_it(report: Report) -> None:
    rows = [
        CommunicationFigures.only(
            "not needed",
            kind="all_gather",
            calls=1,
            communication_ns=2_000_000,
            hidden_ns=2_000_000,
            exposed_ns=0,
            most_share=0.0,
        ),
        CommunicationFigures.only(
            "not needed",
            kind="all_reduce",
            phase="backward",
            purpose="gradients",
            calls=9,
            communication_ns=20_000_000,
            hidden_ns=10_000_000,
            exposed_ns=10_000_000,
            exposed_transfer_ns=6_000_000,
            most_share=0.1,
        ),
    ]
    overlap = figures(OverlapFigures, rows=rows)
    measured = measured_run(exposed_share=0.1, hidden_share=0.1, overlap=overlap)
    written = body(hidden_and_exposed(of(report, measured)))
    assert re.findall(r"width:([\d.]+)%", written) == ["50.00", "30.00", "20.00", "10.00"]
    share = 20_000_000 / measured.account.window_ns
    assert f"all_reduce (gradients) in backward: {100 * share:.1f} %" in written
    assert "all_reduce: waiting" in written
    assert list(hidden_and_exposed(of(report, measured_run()))) == []


def test_what_may_be_waiting_is_not_called_exposed(report: Report) -> None:
    """Where ranks are missing, text and page draw it apart, with a key of its own."""
    shares = {"kind": "all_to_all", "calls": 1, "most_share": 0.9, "exposed_ns": 90_000_000, "hidden_ns": 10_000_000}
    row = CommunicationFigures.only(
        "not needed", **shares, communication_ns=100_000_000, exposed_transfer_ns=80_000_000
    )
    split, unsplit = row, row.model_copy(update={"exposed_unsplit_ns": 60_000_000})
    assert times(unsplit) == (10_000_000, 20_000_000, 60_000_000, 10_000_000)
    for drawn, missing in ((split, False), (unsplit, True)):
        found = of(report, measured_run(exposed_share=0.1, overlap=figures(OverlapFigures, rows=[drawn])))
        written = body(hidden_and_exposed(found))
        assert re.findall(r"width:([\d.]+)%", written) == [
            "10.00",
            *(["20.00", "60.00"] if missing else ["80.00"]),
            "10.00",
        ]
        assert ("all_to_all: comm or waiting" in written) == missing
        assert ("ranks are missing" in written) == missing
        text = paint(overlap(found, 100), colour=False)
        assert ("▚" in text) == missing
        assert ("exposed, or waiting: ranks are missing" in text) == missing


def test_the_same_collective_of_many_groups_is_one_row() -> None:
    """As of data-parallel groups of a thousand ranks: the account's communication is the sum of all rows."""
    shares = {"kind": "all_reduce", "calls": 1, "most_share": 0.1, "hidden_ns": 1, "exposed_ns": 4}
    groups = [
        CommunicationFigures.only("not known", **shares, group=f"dp{at}", communication_ns=5, exposed_transfer_ns=3)
        for at in range(4)
    ]
    other = groups[0].model_copy(update={"kind": "all_gather", "communication_ns": 7})
    (first, row), (second, _) = named_rows([other, *groups], [])
    assert (first, second) == ("all_reduce", "all_gather")
    assert (row.communication_ns, row.hidden_ns, row.exposed_ns) == (20, 4, 16)
    assert (row.exposed_transfer_ns, row.calls) == (12, 4)


def test_links_of_many_groups_of_one_size_have_one_color(report: Report) -> None:
    many = [link("trace", 25.0).model_copy(update={"ranks": [2 * at, 2 * at + 1]}) for at in range(40)]
    written = body(links(of(report, measured_run(links=many))))
    assert written.count("2 ranks, trace, 40 groups: 15.0 GB/s") == 1
    assert len({path.get("stroke") for path in elements(written, "path") if path.get("class") == "dot"}) == 1
    assert len(elements(written, "polyline")) <= 13  # no more fits than can be told from each other, and the peak


def test_the_bandwidth_of_links_is_drawn_with_the_peak_and_what_was_fitted(report: Report) -> None:
    written = body(links(of(report, measured_run(links=[link("trace", 25.0), link("sweep", None)]))))
    dots = [path for path in elements(written, "path") if path.get("class") == "dot"]
    assert len(dots) == 12
    dashes = [line.get("stroke-dasharray") for line in elements(written, "polyline")]
    assert len(dashes) == len(set(dashes)) == 3  # the peak and two fits, told from each other without color
    assert written.count("(dotted)") == 1
    assert "peak of one GPU&#x27;s links: 25.0 GB/s" in written
    assert "15.0 GB/s (60.0 % of peak)" in written
    heights = [float(str(dot.get("d")).split(" ")[1].removesuffix("h0")) for dot in dots[:6]]
    assert heights == sorted(heights, reverse=True)  # larger messages carry more, which is higher up
    assert list(links(of(report, measured_run(links=[])))) == []


def test_links_of_one_message_size_are_left_to_the_table(report: Report) -> None:
    one, other = (of_links.model_copy(update={"sizes": of_links.sizes[:1]}) for of_links in [link("trace", 25.0)] * 2)
    assert list(links(of(report, measured_run(links=[one, other.model_copy(update={"kind": "all_gather"})])))) == []
    larger = other.model_copy(update={"sizes": link("trace", None).sizes[1:2]})
    written = body(links(of(report, measured_run(links=[one, larger]))))
    assert len(elements(written, "path")) == 2
    assert "dotted" not in written  # no line is fitted to one size
    assert list(links(of(report, measured_run(links=[one, larger.model_copy(update={"kind": "all_gather"})])))) == []


def test_kernels_are_drawn_by_class_the_longest_first(report: Report) -> None:
    top = [
        figures(KernelTime, name="gemm", calls_per_step=2.0, total_ns=60, step_share=0.6),
        figures(KernelTime, name="add", calls_per_step=2.0, total_ns=40, step_share=0.3),
    ]
    known = {"counted": "kernels", "per_step": 4.0, "median_ns": 9, "total_ns": 100, "top": top}
    kinds = figures(KernelFigures, **known, kinds_ns={"elementwise": 25, "matrix product": 75})
    written = body(kernel_classes(of(report, measured_run(kernels=kinds))))
    assert re.findall(r'class="name">([a-z ]+): ([\d.]+)', written) == [
        ("matrix product", "75.0"),
        ("elementwise", "25.0"),
    ]
    operators = figures(KernelFigures, **{**known, "counted": "operators"})
    assert re.findall(r'class="name">(\w+):', body(kernel_classes(of(report, measured_run(kernels=operators))))) == [
        "gemm",
        "add",
    ]


def timed(number: int, ms: int, *, outlier: bool = False) -> TimedStep:
    return TimedStep(number, ms * 1_000_000, ms * 1_000_000, 1, outlier)


def test_outliers_of_the_history_are_named_and_cut_off_above_the_others() -> None:
    untraced = [timed(number, 1000 if number == 7 else 10, outlier=number == 7) for number in range(5, 25)]
    windows = [WindowHistory("untraced", untraced), WindowHistory("light", [timed(25, 20), timed(26, 20)])]
    written = body(history(windows, recorded=True))
    boxes = elements(written, "rect")
    heights = [float(box.get("height", "")) for box in boxes]
    assert len(heights) == 22
    assert heights[2] == 1000
    assert heights[0] * 2 == pytest.approx(heights[-1], abs=0.2)
    assert "1 outlier: step 7 (1,000 ms on rank 1)." in written
    assert "are cut off" in written
    assert "the median untraced step, 10.0 ms" in written
    of_report = body(history(windows, recorded=True, step_ns=12e6))
    assert "Dashed: the step time of this report, 12.0 ms." in of_report
    assert list(history([], recorded=False)) == []
    foreign = body(history([WindowHistory("light", [timed(n, 10) for n in range(4)])], recorded=False))
    assert "light" not in foreign
    assert "outlier" not in foreign


def test_what_was_verified_stands_beside_what_was_predicted(report: Report) -> None:
    proof = Verified(
        name="ddp.no_sync=true",
        advice="DP102",
        changes={"ddp.no_sync": True},
        outcome="better",
        reason="x",
        objective="time per step",
        ratio=0.9,
        low_ratio=0.85,
        high_ratio=1.05,
        trials=6,
        learning="alike",
    )
    failed = proof.model_copy(update={"name": "loader.num_workers=4", "ratio": None, "outcome": "inconclusive"})
    written = body(changes(report.model_copy(update={"verified": [proof, failed]}), []))
    assert "better: 10.0 % (-5.0 to 15.0 %), 6 trials per side" in written
    assert "loader.num_workers=4: inconclusive, x" in written
    assert "up to 14.7 %" in written
    left, zero = (float(re.findall(rf'<{tag} style="left:([\d.]+)%', written)[0]) for tag in ("i", "u"))
    assert left == 0
    assert zero > 0  # an interval that reaches below zero starts left of it
    empty = report.model_copy(update={"advice": [], "verified": []})
    assert list(changes(empty, [])) == []


def test_a_range_has_no_line_in_it(report: Report) -> None:
    saves = report.advice[0].saves
    assert saves is not None
    written = []
    for likely in (0.2, None):
        shares = {"low_share": 0.1, "high_share": 0.3, "basis": "replayed", "predicted_share": likely}
        card = report.advice[0].model_copy(update={"saves": saves.model_copy(update=shares)})
        ranged = report.model_copy(update={"advice": [card], "together": [], "verified": []})
        written.append(body(changes(ranged, [])))
    assert [page.count("<b style=") for page in written] == [1, 0]
    assert ["with a line at" in page for page in written] == [True, False]
    assert all("10.0 to 30.0 %" in page for page in written)


@pytest.mark.parametrize("ratio", [1e12, float("inf"), float("nan")])
def test_a_ratio_that_no_axis_has_room_for_breaks_nothing(report: Report, ratio: float) -> None:
    proof = Verified(
        name="x", changes={}, outcome="worse", reason="y", objective="time per step", ratio=ratio, low_ratio=0.9,
        high_ratio=ratio, trials=6, learning="alike",
    )  # fmt: skip
    written = body(changes(report.model_copy(update={"verified": [proof]}), []))
    assert not re.search(r"(?:left|width):-?(?:inf|nan)", written)
    places = [float(place) for place in re.findall(r"(?:left|width):(-?[\d.]+)%", written)]
    assert all(0 <= place <= 100 for place in places)


@pytest.mark.parametrize(
    ("cell", "value"),
    [("1,234", 1234), ("<0.1 %", 0.05), ("~4.50", 4.5), ("2.00 MiB", 2 * 1024**2), ("512 bytes", 512), ("0", 0)],
)
def test_a_cell_is_sorted_by_its_figure(cell: str, value: float) -> None:
    assert float(sorted_by(cell) or "") == value


def test_a_cell_without_a_figure_is_sorted_by_its_text_or_not_at_all() -> None:
    assert sorted_by("all_reduce") == "all_reduce"
    assert sorted_by(Hole("no second rank")) is None


def test_a_table_says_why_figures_are_missing() -> None:
    hole, other = Hole("no second rank"), Hole("not matched")
    columns = [Column("kind", right=False), Column("ms"), Column("GB/s"), Column("busbw")]
    written = table(columns, [["all_reduce", "1.00", hole, hole], ["broadcast", other, hole, hole]], "Collectives")
    assert "GB/s, busbw not measured: no second rank" in written
    assert "not measured: not matched" in written
    assert re.findall(r"<th [^>]*>(.*?)</th>", written) == ["kind", "ms"]
    assert table(columns, [], "none") == ""


def test_the_lateness_of_a_recorded_run_is_of_its_own_steps(report: Report) -> None:
    _, sample = reading.sample("accumulation_without_no_sync")
    numbers = [step.number for step in sample.measured.ranks[0].arrival.steps]
    written = body(lateness(sample))
    assert f"rank 0, step {numbers[0]}: " in written
    assert len(elements(written, "rect")) == 2 * len(numbers)
    late = arrival([1.0]).model_copy(update={"steps": [StepLag(number=41, lag_ns=5_000_000)]})
    figures_of_ranks = [rank.model_copy(update={"arrival": late}) for rank in sample.measured.ranks]
    changed = sample.measured.model_copy(update={"ranks": figures_of_ranks})
    assert "rank 1, step 41: 5.00 ms late" in body(lateness(of(report, changed)))


def test_the_page_shows_the_history_it_is_given(report: Report) -> None:
    windows = [WindowHistory("untraced", [timed(n, 10) for n in range(4)])]
    assert 'id="steps"' in page(report, RunDetails(history=windows))

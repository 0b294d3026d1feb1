"""The section and the map of outliers among many ranks."""

from __future__ import annotations

import re

import pytest

from dptune.advice import Report, Saving
from dptune.commands.export import late_ranks
from dptune.commands.shared.reading import run_and_report
from dptune.present import text
from dptune.present.anonymous import anonymous
from dptune.present.first_screen import first_screen
from dptune.present.html.first import first
from dptune.present.html.outliers import outliers

from ..measure.many_ranks import PER_HOST, Planted, run  # noqa: TID252 - tests are no installed package


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Four hosts in two racks: the GPUs of one take 1.2 times as long, a rank of another idles, one link is slow."""
    folder = tmp_path_factory.mktemp("planted")
    slow = dict.fromkeys(range(PER_HOST, 2 * PER_HOST), 1.2)
    planted = Planted(gemm_times=slow, delays=lambda rank, step: 2_500.0 * (rank == 14), data_times={1: 2.0})
    run(folder, 4, planted, name="gpu-{}.example".format)
    return run_and_report([str(folder)], cached=False)[1]


@pytest.mark.long
def test_the_section_names_places_and_what_they_cost(report: Report) -> None:
    lines = text.sections(report, ["outliers"], 100).splitlines()
    assert lines[0] == "Outliers among 16 ranks"
    assert "own delay ms" in lines[1]
    assert re.search(r"^  14 +gpu-3.example +2\.5\d* +100 %  unexplained idle time$", lines[2])
    assert re.search(r"^  4-7 +host gpu-1.example +1\.\d+ +100 %  slow GPU: same kernels 1\.1\dx$", lines[3])
    words = " ".join(line.strip() for line in lines)
    assert re.search(r"without the delays of rank 14, .* without the delays of the 5 slowest ranks\.", words)
    assert "ranks 4-7 on gpu-1.example (1.1" in words
    assert re.search(r"Slow link: all_reduce of 3.81 MiB among ranks 1, 5, 9, 13 .*\(2\.0x\)\.", words)
    assert len(lines) < 24, "one screen"


def test_a_saving_that_a_recommendation_has_is_not_given_a_second_time(report: Report) -> None:
    """A replay without launches by the host gains more than one with them: only the latter is shown."""
    saves = Saving(
        **{"basis": "replayed", "how": "by hand", "low_ms": 1, "high_ms": 2, "low_share": 0.05, "high_share": 0.12},
        predicted_share=0.09,
    )
    late = report.advice[0].model_copy(update={"rule": "DP701", "title": "Rank 14 arrives late", "saves": saves})
    found = report.measured.outliers
    alone = found.model_copy(update={"gains": found.gains[:1]})
    for outlying, shown in ((alone, False), (found, True)):
        measured = report.measured.model_copy(update={"outliers": outlying})
        told = report.model_copy(update={"advice": [late], "measured": measured})
        words = " ".join(text.sections(told, ["outliers"], 100).split())
        assert ("For the saving without the delays of rank 14, see DP701." in words) is not shown
        assert ("Replayed with the slowest ranks" in words) is shown


def test_the_first_screen_names_them_where_no_single_rank_is_the_verdict(report: Report) -> None:
    assert report.headline.label == "Communication-bound"
    screen = " ".join(text.first_screen(report).split())
    words = "Rank 14 on gpu-3.example and host gpu-1.example (ranks 4-7) are late: without their delays"
    assert words in screen
    shown = re.sub(r"<[^>]+>", "", "".join(first(first_screen(report), [])))
    assert words in shown
    assert "--section" not in shown  # the page has a link
    assert '(<a href="#outliers">Outliers</a>)' in "".join(first(first_screen(report), []))


def test_the_map_has_a_cell_per_rank_and_position(report: Report) -> None:
    (section,) = outliers(report)
    assert "<td>4-7</td><td>host gpu-1.example</td>" in section.body
    assert section.body.count("<title>rank ") == 16
    assert "<title>rank 14 (tensor 2, data 3): 2.5" in section.body
    assert section.body.count("<title>tensor ") == PER_HOST
    assert section.body.count("<title>data ") == 4


def test_of_many_hosts_the_late_ones_and_some_others_are_drawn(report: Report) -> None:
    found = report.measured.outliers
    lag, rank = found.ranks[0], report.measured.ranks[0]
    lags = [
        lag.model_copy(update={"rank": n, "lag_ns": 1_000_000 if n in (5, 40) else 10, "positions": {}})
        for n in range(50)
    ]
    ranks = [rank.model_copy(update={"rank": n, "host": f"host{n:02d}"}) for n in range(50)]
    measured = report.measured.model_copy(update={"outliers": found.model_copy(update={"ranks": lags}), "ranks": ranks})
    (section,) = outliers(report.model_copy(update={"measured": measured}))
    drawn = re.findall(r'<div class="name">(host\d+)<', section.body)
    assert len(drawn) == 8
    assert {"host05", "host40"} <= set(drawn)
    assert "8 of 50 hosts, those with the latest ranks." in section.body


def test_without_hosts_and_groups_there_is_no_map_and_no_column_of_places(report: Report) -> None:
    found = report.measured.outliers
    ranks = [lag.model_copy(update={"positions": {}}) for lag in found.ranks]
    late = [place.model_copy(update={"kind": "rank", "hosts": []}) for place in found.late]
    named = [
        rank.model_copy(update={"host": None, "missing": {**rank.missing, "host": "unknown"}})
        for rank in report.measured.ranks
    ]
    bare = {"outliers": found.model_copy(update={"ranks": ranks, "late": late}), "ranks": named}
    (section,) = outliers(report.model_copy(update={"measured": report.measured.model_copy(update=bare)}))
    assert "A cell per rank" not in section.body
    assert ">where<" not in section.body
    assert "where not measured: the trace does not name the host" in section.body


def test_an_export_of_late_ranks_takes_them_and_the_earliest(report: Report) -> None:
    late = late_ranks(report.measured)
    assert late >= {4, 5, 6, 7, 14}
    assert len(late) == 6


def test_an_anonymous_report_names_no_host(report: Report) -> None:
    assert "gpu-" in report.model_dump_json()
    assert "gpu-" not in anonymous(report).model_dump_json()

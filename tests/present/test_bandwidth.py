"""The picture of bus bandwidth in letters, against points whose places are counted by hand."""

from __future__ import annotations

import pytest

from dptune.measured import LinkFigures, LinkSize
from dptune.present.sections.bandwidth import fitted, plot, points, series


def link(**figures: float) -> LinkFigures:
    """Two ranks: 100 us and 1 GB/s (1 ns a byte): a kilobyte takes 101 us, a gigabyte a second."""
    sizes = [
        LinkSize(message_bytes=size, calls=3, median_ns=took, q1_ns=took, q3_ns=took)
        for size, took in ((1_000, 101_000), (1_000_000, 1_100_000), (1_000_000_000, 1_000_100_000))
    ]
    known = {"alpha_us": 100.0, "algbw_gb_per_s": 1.0, "busbw_gb_per_s": 1.0, **figures}
    return LinkFigures.only(
        "not fitted", kind="all_reduce", ranks=[0, 1], scope="intra-node", basis="sweep", sizes=sizes, calls=9, **known
    )


def rows(width: int, **figures: float) -> list[str]:
    return ["".join(span.text for span in line) for line in plot([link(**figures)], width)]


def test_points_are_bytes_over_time_as_each_link_carries_them() -> None:
    assert points(link()) == [(1_000, 1_000 / 101_000), (1e6, 1e6 / 1.1e6), (1e9, 1e9 / 1.0001e9)]
    four = link().model_copy(update={"ranks": [0, 1, 2, 3]})  # of which each link carries 2 * 3 / 4, fitted or not
    assert points(four)[0] == (1_000, pytest.approx(1.5 * 1_000 / 101_000))
    assert points(link().model_copy(update={"kind": "barrier"})) == []


def test_the_line_goes_through_the_points_it_was_made_of() -> None:
    assert [*fitted(link(), steps=2)] == [pytest.approx(point) for point in points(link())]
    assert not list(fitted(link().model_copy(update={"alpha_us": None, "missing": {"alpha_us": "too few"}})))


def test_the_least_stands_at_the_left_below_and_the_largest_at_the_right_above() -> None:
    told = rows(80)
    picture = [row.partition("│")[2] for row in told[:12]]
    assert picture[0][-1] == picture[11][0] == "a"
    assert picture[0].index("a") == 32  # a megabyte is half way from a kilobyte in column 0 to a gigabyte in 65
    assert sum(row.count("a") for row in picture) == 3
    assert told[0].split("│")[0].strip() == "1 GB/s"
    assert told[11].split("│")[0].strip() == "0.0099 GB/s"
    assert "a all_reduce, 2 ranks, sweep" in told[14]
    assert "╌" not in "".join(picture)


def test_the_peak_is_a_row_of_dashes() -> None:
    told = rows(80, peak_gb_per_s=100.0)
    assert told[0].partition("│")[2] == "╌" * 66
    assert "Dashes: peak of a GPU's link, 100.0 GB/s." in " ".join(" ".join(told).split())


def test_a_peak_below_all_that_was_measured_is_drawn_too() -> None:
    told = rows(80, peak_gb_per_s=0.001)
    assert told[11].partition("│")[2] == "╌" * 66
    assert told[11].split("│")[0].strip() == "0.001 GB/s"


def test_nothing_is_drawn_of_no_sizes() -> None:
    empty = link().model_copy(update={"sizes": []})
    assert not list(plot([empty], 80))
    assert not list(plot([], 80))


def test_nothing_is_drawn_of_one_size() -> None:
    one = link().model_copy(update={"sizes": link().sizes[1:2]})
    assert not list(plot([one, one.model_copy(update={"kind": "all_gather"})], 80))
    assert list(plot([one, link().model_copy(update={"sizes": link().sizes[:1]})], 80))


def test_links_of_many_groups_of_one_size_are_one_letter() -> None:
    """As of a thousand ranks with tensor parallelism inside each host."""
    many = [link().model_copy(update={"ranks": [2 * at, 2 * at + 1]}) for at in range(250)]
    four = link().model_copy(update={"ranks": [0, 1, 2, 3]})
    assert {of: len(alike) for of, alike in series([*many, four]).items()} == {
        "all_reduce, 2 ranks, sweep, 250 groups": 250,
        "all_reduce, 4 ranks, sweep": 1,
    }
    drawn = ["".join(span.text for span in line) for line in plot([*many, four], 80)]
    assert [row.strip() for row in drawn[14:16]] == [
        "a all_reduce, 2 ranks, sweep, 250 groups",
        "b all_reduce, 4 ranks, sweep",
    ]
    assert "".join(drawn[:12]).count("b") == len(points(four))

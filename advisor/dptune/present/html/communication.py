"""Communication: how much of each collective compute hides, and how close to its peak each link runs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from dptune.advice import Report
from dptune.measured import CommunicationFigures, LinkFigures
from dptune.present.amounts import between, data, number, percent, several
from dptune.present.html import charts
from dptune.present.html.markup import Section, key, note
from dptune.present.html.style import COLORS, PALETTE
from dptune.present.sections.bandwidth import drawable, fitted, points, series
from dptune.present.sections.overlap import MOST_COLLECTIVES, named_rows, times
from dptune.present.step_classes import color_of

_HIDDEN, _TRANSFER, _WAITING = COLORS["compute"], COLORS["communication"], COLORS["waiting"]
_UNSPLIT = color_of("exposed_unsplit_ns")
_PEAK = "#cc79a7"
_LABELS = 5  # of an axis
_MOST_LINES = 12  # of links alike
_LINES = (("", ""), ("2 4", " (dotted)"), ("9 4 2 4", " (dash-dotted)"))  # of a series: dashes, words of the key
_ZEROS = re.compile(r"\.0+ ")


def hidden_and_exposed(report: Report) -> Iterator[Section]:
    """A bar for each collective, as long as its share of the step: hidden, exposed, waiting."""
    overlap, account = report.measured.known("overlap"), report.measured.known("account")
    if overlap is None or account is None or not overlap.rows or not account.window_ns:
        return
    rows, window_ns = named_rows(overlap.rows, report.measured.process_groups), account.window_ns
    longest = rows[0][1].communication_ns
    if not longest:
        return
    named = [
        (f"{name}: {percent(row.communication_ns / window_ns)}", charts.bar(_parts(row, longest, window_ns)))
        for name, row in rows[:MOST_COLLECTIVES]
    ]
    left_out = len(rows) - len(named)
    more = note(f"and {several(left_out, 'shorter row')}" if left_out > 0 else "")
    colors = [
        (_HIDDEN, "hidden: overlapped by compute"),
        (_TRANSFER, "exposed communication: not overlapped by compute"),
        (_WAITING, "waiting for ranks: a late rank has not arrived"),
    ]
    if any(row.exposed_unsplit_ns for _, row in rows):
        colors.insert(2, (_UNSPLIT, "exposed communication, or waiting for ranks: ranks are missing"))
    words = f"{percent(account.overlap_share)} of all communication is hidden. Shares are of the traced step."
    body = f"{charts.rows(named, long_names=True)}{key(colors)}{more}{note(words)}"
    yield Section("communication", "Hidden and exposed communication", "Communication", body)


def _parts(row: CommunicationFigures, longest: int, window_ns: int) -> Iterator[charts.Part]:
    words_and_colors = (
        ("hidden", _HIDDEN),
        ("exposed", _TRANSFER),
        ("comm or waiting", _UNSPLIT),
        ("waiting", _WAITING),
    )
    for (words, color), part_ns in zip(words_and_colors, times(row), strict=True):
        share = percent(part_ns / window_ns)
        yield charts.Part(part_ns / longest, color, f"{row.kind}: {words} {share} of the step", share, words)


def links(report: Report) -> Iterator[Section]:
    """Bus bandwidth by message size as measured, with the fitted line and the peak of the link."""
    drawn = drawable(report.measured.known("links") or [])
    if not drawn:
        return
    measured = [point for link in drawn for point in points(link)]
    peak = max((link.known("peak_gb_per_s") or 0.0 for link in drawn), default=0.0)
    x = _Logarithmic([size for size, _ in measured])
    y = _Logarithmic([*(rate for _, rate in measured), *([peak] if peak else [])])
    marks = []
    if peak:
        marks.append(charts.curve([(0, y.at(peak)), (1, y.at(peak))], _PEAK, charts.DASHED))
    colored = [(PALETTE[place % len(PALETTE)], named) for place, named in enumerate(series(drawn).items())]
    for place, (color, (name, alike)) in enumerate(colored):
        lines = ([(x.at(size), y.at(rate)) for size, rate in fitted(link)] for link in alike[:_MOST_LINES])
        marks += [
            charts.curve([point for point in line if 0 <= point[1] <= 1], color, _LINES[place % len(_LINES)][0])
            for line in lines
            if line
        ]
        for size, rate in dict.fromkeys(point for link in alike for point in points(link)):
            tooltip = f"{name}: {data(round(size))}: {number(rate)} GB/s"
            marks.append(charts.dot(x.at(size), y.at(rate), color, tooltip))
    picture = charts.plot(marks, _sizes(x), _rates(y), "Bus bandwidth by message size")
    colors = [
        (color, f"{_with_rate(name, alike)}{_LINES[place % len(_LINES)][1] if any(map(_is_fitted, alike)) else ''}")
        for place, (color, (name, alike)) in enumerate(colored)
    ]
    colors += [(_PEAK, f"peak of one GPU's links: {number(peak)} GB/s")] if peak else []
    words = "Dots: measured bus bandwidth (busbw of nccl-tests); lines: time = latency + bytes / bandwidth."
    yield Section("links", "Link bandwidth", "Links", f"{picture}{key(colors)}{note(words)}")


def _is_fitted(link: LinkFigures) -> bool:
    return any(True for _ in fitted(link))


def _with_rate(name: str, alike: Sequence[LinkFigures]) -> str:
    """The name, with the fitted bandwidth and what that is of the peak; of several links the range."""
    rates = [rate for link in alike if (rate := link.known("busbw_gb_per_s")) is not None]
    if len(alike) > 1:
        return f"{name}: {between(number(min(rates)), number(max(rates)), 'GB/s')}" if rates else name
    peak = alike[0].known("peak_gb_per_s")
    if not rates:
        return name
    return f"{name}: {number(rates[0])} GB/s{f' ({percent(rates[0] / peak)} of peak)' if peak else ''}"


class _Logarithmic:
    """An axis with equal room for equal ratios, a little wider than what is on it."""

    def __init__(self, values: Sequence[float]) -> None:
        self.low, self.high = math.log10(min(values) / 1.3), math.log10(max(values) * 1.3)

    @property
    def middle(self) -> int:
        return round(10 ** ((self.low + self.high) / 2))

    def at(self, value: float) -> float:
        return (math.log10(value) - self.low) / (self.high - self.low)


def _sizes(x: _Logarithmic) -> list[charts.Tick]:
    """Powers of two, as many as have room on a phone."""
    first, last = math.ceil(x.low / math.log10(2)), math.floor(x.high / math.log10(2))
    every = max(1, math.ceil((last - first + 1) / _LABELS))
    sizes = [2**power for power in range(max(first, 0), last + 1, every)]
    return [charts.Tick(x.at(size), _ZEROS.sub(" ", data(size))) for size in sizes or [x.middle]]


def _rates(y: _Logarithmic) -> list[charts.Tick]:
    """1, 2 and 5 of each power of ten; powers alone where these are many."""
    powers = range(math.floor(y.low), math.ceil(y.high) + 1)
    steps = (1, 2, 5) if y.high - y.low < 2 else (1,)
    values = [step * 10.0**power for power in powers for step in steps]
    return [charts.Tick(y.at(value), f"{value:g} GB/s") for value in values if 0 <= y.at(value) <= 1]

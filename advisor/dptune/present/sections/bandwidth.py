"""Size against bus bandwidth: what every picture of it draws."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle, groupby

from dptune.measured import LinkFigures
from dptune.measured.collectives import collective
from dptune.present.amounts import data, number
from dptune.present.lines import Line, Role, Span, line, wrapped

Point = tuple[float, float]  # message bytes, GB/s
_ROWS = 12
_LEFT = 12  # columns for the rates
_SIGNS = "abcdefghijkl"
_ROLES: tuple[Role, ...] = ("good", "code", "warning", "note")
_NOTHING, _PEAK, _FITTED = Span(" ", "dim"), Span("╌", "dim"), Span("·", "dim")


def points(link: LinkFigures) -> list[Point]:
    """The sizes that were measured, ascending, with the rate of each."""
    found = ((float(size.message_bytes), _rate(link, size.median_ns, size.message_bytes)) for size in link.sizes)
    return sorted(point for point in found if point[0] > 0 and point[1] > 0)


def drawable(links: Iterable[LinkFigures]) -> list[LinkFigures]:
    """The links that were measured; none where each has one size, whose rates the table of collectives has."""
    found = [link for link in links if points(link)]
    sizes = ({size for link in alike for size, _ in points(link)} for alike in series(found).values())
    return found if any(len(of_series) > 1 for of_series in sizes) else []


def fitted(link: LinkFigures, steps: int = 40) -> Iterator[Point]:
    """The line that latency and bandwidth make, from the least size to the largest; nothing where none was fitted."""
    alpha, algbw, busbw = (link.known(name) for name in ("alpha_us", "algbw_gb_per_s", "busbw_gb_per_s"))
    measured = points(link)
    if alpha is None or not algbw or not busbw or len(measured) < 2:
        return
    low, high = math.log10(measured[0][0]), math.log10(measured[-1][0])
    for step in range(steps + 1):
        size = 10 ** (low + (high - low) * step / steps)
        took_ns = max(alpha * 1e3 + size / algbw, 1e-9)
        rate = size / took_ns * busbw / algbw
        if rate > 0:
            yield size, rate


def name(link: LinkFigures) -> str:
    """What is communicated, between how many, and how that is known."""
    return f"{link.kind}, {len(link.ranks)} ranks, {link.basis}"


def series(links: Iterable[LinkFigures]) -> dict[str, list[LinkFigures]]:
    """Links by what the pictures call them: those of many groups of the same size are one series."""
    found: dict[str, list[LinkFigures]] = {}
    for link in links:
        found.setdefault(name(link), []).append(link)
    return {f"{of}, {len(alike):,} groups" if len(alike) > 1 else of: alike for of, alike in found.items()}


def plot(links: Sequence[LinkFigures], width: int) -> Iterator[Line]:
    """The same in characters: a letter for each measured size, dots for the fitted line, dashes for the link's peak."""
    named = dict(zip(_SIGNS, series(drawable(links)).items(), strict=False))
    drawn = [link for _, alike in named.values() for link in alike]
    if not drawn:
        return
    measured = [point for link in drawn for point in points(link)]
    peak = max((link.known("peak_gb_per_s") or 0.0 for link in drawn), default=0.0)
    room = max(width - _LEFT - 2, 20)
    low_x, high_x = math.log10(min(size for size, _ in measured)), math.log10(max(size for size, _ in measured))
    rates = [*(rate for _, rate in measured), *([peak] if peak else [])]
    low_y, high_y = math.log10(min(rates)), math.log10(max(rates))

    def column(size: float) -> int:
        return round((math.log10(size) - low_x) / max(high_x - low_x, 1e-9) * (room - 1))

    def row(rate: float) -> int:
        return _ROWS - 1 - round((math.log10(rate) - low_y) / max(high_y - low_y, 1e-9) * (_ROWS - 1))

    cells = [[_NOTHING] * room for _ in range(_ROWS)]
    if peak:
        cells[row(peak)] = [_PEAK] * room
    for link in drawn:
        for size, rate in fitted(link, steps=room):
            if 0 <= row(rate) < _ROWS:
                cells[row(rate)][column(size)] = _FITTED
    for (sign, (_, alike)), role in zip(named.items(), cycle(_ROLES), strict=False):
        for size, rate in (point for link in alike for point in points(link)):
            cells[row(rate)][column(size)] = Span(sign, role)
    for place, cell in enumerate(cells):
        rate = 10 ** (low_y + (high_y - low_y) * (_ROWS - 1 - place) / (_ROWS - 1))
        label = f"{rate:.3g} GB/s" if place % 3 == 0 or place == _ROWS - 1 else ""
        joined = (
            Span("".join(span.text for span in group), role) for role, group in groupby(cell, lambda span: span.role)
        )
        yield Span(f"{label:>{_LEFT}} │", "dim"), *joined
    least, most = data(round(10**low_x)), data(round(10**high_x))
    yield line(f"{'':{_LEFT}} └{'─' * room}", "dim")
    yield line(f"{'':{_LEFT}}  {least}{most:>{max(room - len(least), len(most) + 1)}}", "dim")
    for sign, (of, _) in named.items():
        yield from wrapped(f"{sign} {of}", width, "  ", "    ")
    dashes = f" Dashes: peak of a GPU's link, {number(peak)} GB/s." if peak else ""
    words = f"Letters: measured bus bandwidth by message size; dots: the model latency + bytes / bandwidth.{dashes}"
    yield from wrapped(words, width, "  ", role="dim")


def _rate(link: LinkFigures, took_ns: int, size: int) -> float:
    """Bus bandwidth of one size; 0, which is not drawn, where that is not defined."""
    factor = collective(link.kind).bus_factor(len(link.ranks))
    return size / took_ns * factor if took_ns > 0 and factor else 0.0

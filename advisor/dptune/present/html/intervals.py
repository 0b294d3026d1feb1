"""Intervals of savings as bars, a row for each, on one axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from dptune.present.html import charts
from dptune.present.html.markup import prose, text
from dptune.present.html.style import shade

_LEAST_DRAWN = -2.0  # of the time: what costs more is drawn as that


class Interval(NamedTuple):
    """A share of the time that a change saves, from low to high; negative: it costs time."""

    name: str
    low: float
    high: float
    middle: float | None
    color: str
    words: str


def forest(intervals: Sequence[Interval]) -> str:
    """A row for each interval, on one axis of shares."""
    least = max(_LEAST_DRAWN, min(0.0, *(interval.low for interval in intervals)))
    room = max(0.05, *(interval.high for interval in intervals)) * 1.05 - least
    cells = []
    for interval in intervals:
        low = max(interval.low, least)
        left, wide = 100 * (low - least) / room, 100 * max(interval.high - low, 0) / room
        zero = f'<u style="left:{-100 * least / room:.2f}%"></u>'
        span = f'<i style="left:{left:.2f}%;width:{wide:.2f}%;background:{shade(interval.color)}"></i>'
        middle = interval.middle
        mark = "" if middle is None or middle < least else f'<b style="left:{100 * (middle - least) / room:.2f}%"></b>'
        cells.append(
            f'<div class="name">{text(interval.name)}</div><div class="interval">{zero}{span}{mark}</div>'
            f'<div class="value">{prose(interval.words)}</div>'
        )
    ticks = [charts.Tick((share - least) / room, f"{100 * share:,g} %") for share in _round_shares(least, least + room)]
    cells.append(f'<div class="name"></div>{charts.axis(ticks)}<div class="value"></div>')
    return f'<div class="rows three">{"".join(cells)}</div>'


def _round_shares(least: float, most: float) -> list[float]:
    """Round shares between two, five or so; zero is among them."""
    step = next(
        step for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5, 25, 100, math.inf) if (most - least) / step <= 6
    )
    if step == math.inf:
        return [0.0]
    return [step * place for place in range(math.ceil(least / step), math.floor(most / step) + 1)]

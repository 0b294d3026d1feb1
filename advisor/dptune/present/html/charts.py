"""Pictures that fit any width: bars of HTML, marks of SVG that stretch, labels of HTML that keep their size.

Nothing in them needs a script, a font or the network.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dptune.present.html.markup import prose, text
from dptune.present.html.style import DARK, shade

MOST_ROWS = 32
MARK = "\N{BLACK RIGHT-POINTING TRIANGLE} "  # before the name of a straggler
SCALE = 1000  # width of an SVG in its own units
_LEAST_CAPTION = 0.02  # of a bar: a part of less has no room for a caption; the style hides others that do not fit
_FIRST, _LAST = 0.04, 0.9  # of an axis: a label before or after that is not centered, to stay within the picture
_LEAST_MARK = 0.5  # units: what is too short to be seen is drawn that long
DASHED = "6 4"  # of a line that is a limit


class Part(NamedTuple):
    """A part of a bar; the caption is drawn where it has room, with the name behind it where that has room, too."""

    share: float
    color: str
    tooltip: str
    caption: str = ""
    name: str = ""


class Box(NamedTuple):
    """A rectangle of a strip: where it starts and how long it is, as shares of the strip; `opacity` of its color."""

    start: float
    length: float
    color: str
    tooltip: str
    opacity: float = 1.0


class Tick(NamedTuple):
    """A label of an axis, at a share of its length."""

    at: float
    words: str


def bar(parts: Iterable[Part]) -> str:
    """Parts side by side; shares are of the width that the bar may take."""
    pieces = []
    for part in parts:
        if part.share <= 0:
            continue
        caption = text(part.caption) if part.share >= _LEAST_CAPTION else ""
        if caption and part.name:
            caption += f"<i>{text(part.name)}</i>"
        ink = "#fff" if part.color in DARK else "#000"
        look = f"width:{100 * part.share:.2f}%;background:{shade(part.color)};color:{ink}"
        pieces.append(f'<span style="{look}" title="{text(part.tooltip)}">{caption}</span>')
    return f'<div class="bar">{"".join(pieces)}</div>'


def strip(boxes: Iterable[Box], title: str) -> str:
    """Rectangles along one line."""
    pieces = []
    for box in boxes:
        wide = max(box.length * SCALE, _LEAST_MARK)
        opacity = "" if box.opacity == 1.0 else f' fill-opacity="{box.opacity:.2f}"'
        where = f'x="{box.start * SCALE:.2f}" width="{wide:.2f}" height="10" fill="{box.color}"{opacity}'
        pieces.append(f"<rect {where}><title>{text(box.tooltip)}</title></rect>")
    opening = f'<svg class="strip" viewBox="0 0 {SCALE} 10" preserveAspectRatio="none" role="img"'
    return f'{opening} aria-label="{text(title)}">{"".join(pieces)}</svg>'


def rows(named: Iterable[tuple[str, str]], ticks: Sequence[Tick] = (), long_names: bool = False, late: str = "") -> str:
    """A picture per row beside its name; on a phone long names are above it. `ticks` are of an axis below; `late`:
    the name of a row to mark.
    """
    cells = [
        f'<div class="name late">{MARK}{prose(name)}</div><div>{picture}</div>'
        if name == late
        else f'<div class="name">{prose(name)}</div><div>{picture}</div>'
        for name, picture in named
    ]
    if ticks:
        cells.append(f'<div class="name"></div>{axis(ticks)}')
    return f'<div class="rows{" long" if long_names else ""}">{"".join(cells)}</div>'


def axis(ticks: Iterable[Tick]) -> str:
    """Labels from left to right, each below its mark."""
    ticks = list(ticks)
    labels = [
        _placed("left", tick, "first" if tick.at < _FIRST else "last" if tick.at > _LAST else "") for tick in ticks
    ]
    marks = [f'<i style="left:{100 * tick.at:.2f}%"></i>' for tick in ticks]
    return f'<div class="x">{"".join(labels + marks)}</div>'


def plot(marks: Iterable[str], x: Iterable[Tick], y: Iterable[Tick], title: str) -> str:
    """SVG marks in a field of SCALE by SCALE units, y downwards, with labels of both axes and a line for each of y."""
    y = list(y)
    lines = (
        f'<line class="axis" x1="0" x2="{SCALE}" y1="{SCALE * (1 - tick.at):.1f}" y2="{SCALE * (1 - tick.at):.1f}"/>'
        for tick in y
    )
    opening = f'<svg viewBox="0 0 {SCALE} {SCALE}" preserveAspectRatio="none" role="img" aria-label="{text(title)}">'
    picture = f"{opening}{''.join(lines)}{''.join(marks)}</svg>"
    labels = "".join(_placed("bottom", tick) for tick in y)
    return f'<div class="plot"><div class="y">{labels}</div>{picture}{axis(x)}</div>'


def dot(x: float, y: float, color: str, tooltip: str) -> str:
    """A round mark of a plot at shares of its axes, whatever the shape of the field."""
    where = f"M{x * SCALE:.1f} {SCALE * (1 - y):.1f}h0"
    return f'<path class="dot" d="{where}" stroke="{color}"><title>{text(tooltip)}</title></path>'


def curve(points: Iterable[tuple[float, float]], color: str, dashes: str = "") -> str:
    """A line through points at shares of the axes; `dashes` and gaps as SVG has them."""
    path = " ".join(f"{x * SCALE:.1f},{SCALE * (1 - y):.1f}" for x, y in points)
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<polyline class="curve" points="{path}" stroke="{color}"{dashed}/>'


def time_ticks(whole_ns: float) -> list[Tick]:
    """Round times in ms up to a whole, five or so."""
    whole = whole_ns / 1e6
    if whole <= 0:
        return []
    rough = whole / 5
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * times for times in (1, 2, 5, 10) if size * times >= rough)
    return [
        Tick(step * place / whole, f"{step * place:,g} ms")
        for place in range(int(whole / step) + 1)
        if step * place < 0.96 * whole
    ]


def _placed(side: str, tick: Tick, look: str = "") -> str:
    of_class = f' class="{look}"' if look else ""
    return f'<span{of_class} style="{side}:{100 * tick.at:.2f}%">{text(tick.words)}</span>'

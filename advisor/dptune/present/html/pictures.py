"""Pictures of a report as SVG, made of text alone: no script, no font, nothing to fetch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from dptune.measure.lanes import SELF_TIME, StepLanes
from dptune.measured import LinkFigures, short_name
from dptune.predicted import BucketSize
from dptune.present.amounts import data, ns_as_ms, number, percent
from dptune.present.html.style import COLOURS, DARK
from dptune.present.sections.account import CLASSES
from dptune.present.sections.bandwidth import fitted
from dptune.present.sections.bandwidth import name as link_name
from dptune.present.sections.bandwidth import points as measured_sizes
from dptune.present.visible import visible

WIDTH = 960
_LEFT = 110  # for the names of rows
_ROW = 24
_KEY = 210  # for what the colours of lines are
MOST_ROWS = 64
# The colour of each class of the account; what exchanges has one.
CLASS_COLOURS = {
    "compute_ns": "compute",
    "exposed_transfer_ns": "communication",
    "exposed_waiting_ns": "waiting",
    "exposed_unsplit_ns": "communication",
    "copy_ns": "copy",
    "memset_ns": "memset",
    "input_idle_ns": "input",
    "gc_idle_ns": "garbage",
    "sync_idle_ns": "blocking",
    "launch_idle_ns": "launching",
    "dependency_idle_ns": "queued",
    "host_idle_ns": "host",
}


def text(words: object) -> str:
    """Words of whoever's, as text of a page."""
    return escape(visible(str(words)))


def colour_of(field: str) -> str:
    """The colour of a class of the account."""
    return COLOURS[CLASS_COLOURS.get(field, "idle")]


def bars(rows: Sequence[tuple[str, Sequence[tuple[str, float]]]], title: str) -> str:
    """One bar a row, of shares by class of the account."""
    names = {kind.field: kind.name for kind in CLASSES}
    shown = rows[:MOST_ROWS]
    parts = []
    for place, (label, shares) in enumerate(shown):
        top, left = place * _ROW, float(_LEFT)
        parts.append(f'<text x="0" y="{top + 16}">{text(label)}</text>')
        for field, share in shares:
            wide = share * (WIDTH - _LEFT)
            if wide > 0:
                tooltip = f"{label}: {names[field]} {percent(share)}"
                parts.append(_box(left, top + 2, wide, _ROW - 5, colour_of(field), tooltip))
                if wide > 60:
                    ink = "#fff" if colour_of(field) in DARK else "#000"
                    parts.append(f'<text x="{left + 5:.1f}" y="{top + 16}" style="fill:{ink}">{percent(share)}</text>')
            left += wide
    return _svg(WIDTH, max(len(shown), 1) * _ROW, parts, title)


def timeline(lanes: StepLanes) -> str:
    """The lanes of one step, from left to right."""
    parts, room = [], WIDTH - _LEFT
    for place, lane in enumerate(lanes.lanes[:MOST_ROWS]):
        top = place * _ROW
        parts.append(f'<text x="0" y="{top + 16}">{text(lane.label)}</text>')
        parts.append(f'<line class="axis" x1="{_LEFT}" x2="{WIDTH}" y1="{top + _ROW - 1}" y2="{top + _ROW - 1}"/>')
        for piece in lane.pieces:
            left = _LEFT + piece.start_ns / lanes.length_ns * room
            wide = max(piece.length_ns / lanes.length_ns * room, 0.5)
            many = f" and {piece.count - 1:,} more" if piece.count > 1 else ""
            name = short_name(piece.name) or SELF_TIME
            label = f"{name}{many}: {ns_as_ms(piece.length_ns)} ms, from {ns_as_ms(piece.start_ns)} ms"
            parts.append(_box(left, top + 2, wide, _ROW - 6, COLOURS.get(piece.kind, COLOURS["idle"]), label))
    height = len(lanes.lanes[:MOST_ROWS]) * _ROW
    for tick in _ticks(lanes.length_ns / 1e6):
        left = _LEFT + tick * 1e6 / lanes.length_ns * room
        parts.append(f'<text class="faint" x="{left:.1f}" y="{height + 16}">{number(tick)} ms</text>')
    return _svg(WIDTH, height + 22, parts, f"Step {lanes.number} of rank {lanes.rank}, by stream or thread")


def bandwidth(links: Sequence[LinkFigures]) -> str:
    """Size against bus bandwidth of each kind of collective, as measured, with the fitted line and the link's peak."""
    points = [(link, size, rate) for link in links for size, rate in measured_sizes(link)]
    if not points:
        return ""
    peak = max((link.known("peak_gb_per_s") or 0.0 for link in links), default=0.0)
    low_x, high_x = math.log10(min(p[1] for p in points) / 1.2), math.log10(max(p[1] for p in points) * 1.2)
    rates = [*(rate for _, _, rate in points), *([peak] if peak else [])]
    low_y, high_y = math.log10(min(rates) * 0.8), math.log10(max(rates) * 1.2)
    height, left, bottom = 320, 95, 280

    def at(size: float, rate: float) -> tuple[float, float]:
        x = left + (math.log10(size) - low_x) / max(high_x - low_x, 1e-9) * (WIDTH - left - _KEY)
        y = bottom - (math.log10(rate) - low_y) / max(high_y - low_y, 1e-9) * (bottom - 15)
        return x, y

    parts = [f'<line class="axis" x1="{left}" x2="{WIDTH - _KEY}" y1="{bottom}" y2="{bottom}"/>']
    for power in range(0, 41, 4):  # every sixteenfold from one byte on
        if 10**low_x <= 2**power <= 10**high_x:
            x, _ = at(2.0**power, 10**low_y)
            parts.append(f'<text class="faint" x="{x - 20:.1f}" y="{bottom + 18}">{text(data(2**power))}</text>')
    for power in range(math.ceil(low_y), math.floor(high_y) + 1):
        _, y = at(10**low_x, 10.0**power)
        parts.append(f'<text class="faint" x="0" y="{y + 4:.1f}">{10.0**power:g} GB/s</text>')
        parts.append(f'<line class="axis" x1="{left}" x2="{WIDTH - _KEY}" y1="{y:.1f}" y2="{y:.1f}"/>')
    if peak:
        _, y = at(10**low_x, peak)
        parts.append(
            f'<line x1="{left}" x2="{WIDTH - _KEY}" y1="{y:.1f}" y2="{y:.1f}" stroke="#cc79a7" stroke-dasharray="6 4"/>'
        )
        parts.append(f'<text x="{WIDTH - _KEY + 5}" y="{y + 4:.1f}">peak {number(peak)} GB/s</text>')
    palette = [COLOURS[name] for name in ("compute", "communication", "copy", "input", "waiting", "idle")]
    for place, link in enumerate(links):
        paint, name = palette[place % len(palette)], link_name(link)
        for size, rate in measured_sizes(link):
            x, y = at(size, rate)
            tooltip = f"{name}: {data(round(size))}: {number(rate)} GB/s"
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{paint}"><title>{text(tooltip)}</title></circle>'
            )
        if curve := list(fitted(link)):
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(size, rate) for size, rate in curve))
            parts.append(f'<polyline points="{path}" fill="none" stroke="{paint}" stroke-width="1.5"/>')
        parts.append(f'<rect x="{WIDTH - _KEY + 5}" y="{30 + 20 * place}" width="10" height="10" fill="{paint}"/>')
        parts.append(f'<text x="{WIDTH - _KEY + 20}" y="{40 + 20 * place}">{text(name)}</text>')
    return _svg(WIDTH, max(height, 50 + 20 * len(links)), parts, "Bus bandwidth by message size")


def heat(rows: Sequence[tuple[str, Sequence[int]]], title: str) -> str:
    """A cell for each rank and step: the stronger the colour, the later it came."""
    shown = rows[:MOST_ROWS]
    most = max((value for _, values in shown for value in values), default=0)
    if not most:
        return ""
    columns = max(len(values) for _, values in shown)
    wide = (WIDTH - _LEFT) / columns
    parts = []
    for place, (label, values) in enumerate(shown):
        top = place * 18
        parts.append(f'<text x="0" y="{top + 13}">{text(label)}</text>')
        for step, value in enumerate(values):
            tooltip = f"{label}, step {step + 1} of {len(values)}: {ns_as_ms(value)} ms late"
            box = _box(_LEFT + step * wide, top + 1, max(wide - 1, 0.5), 16, COLOURS["communication"], tooltip)
            parts.append(box.replace("<rect ", f'<rect fill-opacity="{0.06 + 0.94 * value / most:.2f}" ', 1))
    return _svg(WIDTH, len(shown) * 18 + 2, parts, title)


def curve(sizes: Sequence[BucketSize]) -> str:
    """The step by bucket size."""
    longest = max(bucket_size.step_ns for bucket_size in sizes)
    parts = []
    for place, size in enumerate(sizes):
        top, wide = place * _ROW, size.step_ns / longest * (WIDTH - _LEFT - 160)
        name = "default" if size.cap_mb is None else f"{size.cap_mb:g} MiB"
        parts.append(f'<text x="0" y="{top + 16}">{text(name)}</text>')
        parts.append(_box(_LEFT, top + 3, wide, _ROW - 7, COLOURS["copy"], f"{name}: {ns_as_ms(size.step_ns)} ms"))
        caption = f"{ns_as_ms(size.step_ns)} ms, {size.buckets} bucket{'' if size.buckets == 1 else 's'}"
        parts.append(f'<text x="{_LEFT + wide + 6:.1f}" y="{top + 16}">{caption}</text>')
    return _svg(WIDTH, len(sizes) * _ROW, parts, "Predicted step by bucket size")


def _ticks(whole: float) -> Iterable[float]:
    """Round numbers up to a whole, five or so."""
    if whole <= 0:
        return []
    rough = whole / 5
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * times for times in (1, 2, 5, 10) if size * times >= rough)
    return [step * place for place in range(int(whole / step) + 1) if step * place < 0.96 * whole]


def _box(left: float, top: float, wide: float, high: float, colour: str, tooltip: str) -> str:
    where = f'x="{left:.2f}" y="{top}" width="{wide:.2f}" height="{high}"'
    return f'<rect {where} fill="{colour}"><title>{text(tooltip)}</title></rect>'


def _svg(wide: int, high: int, parts: Iterable[str], title: str) -> str:
    words = text(title)
    opening = f'<svg viewBox="0 0 {wide} {high}" role="img" aria-label="{words}">'
    return f"{opening}<title>{words}</title>{''.join(parts)}</svg>"

"""What was tried: verified changes and predictions with their intervals, and the bucket sizes of a search."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dptune.advice import Report, Saving, Verified
from dptune.predicted import BucketSize
from dptune.present.amounts import ns_as_ms, percent, several
from dptune.present.html import charts
from dptune.present.html.markup import Section, key, note, paragraph, text, together
from dptune.present.html.style import COLORS

_LEAST_DRAWN = -2.0  # of the time: what costs more is drawn as that
_VERIFIED, _PREDICTED, _BOUND = COLORS["compute"], COLORS["copy"], COLORS["blocking"]


class _Interval(NamedTuple):
    """A share of the time that a change saves, from low to high; negative: it costs time."""

    name: str
    low: float
    high: float
    middle: float | None
    color: str
    words: str


def changes(report: Report, sizes: Sequence[BucketSize]) -> Iterator[Section]:
    """Nothing where nothing was verified or predicted."""
    intervals = [*_verified(report.verified), *_predicted(report)]
    parts = []
    if intervals:
        parts.append(_forest(intervals))
        used = {interval.color for interval in intervals}
        colors = (
            (_VERIFIED, "verified: the change was run"),
            (_PREDICTED, "predicted"),
            (_BOUND, "upper bound: actual savings may be lower"),
        )
        parts.append(key(entry for entry in colors if entry[0] in used))
        middle = ", with a line at the measured or predicted value"
        has_middle = any(interval.middle is not None for interval in intervals)
        parts.append(note(f"Time saved per step or sample: the interval{middle if has_middle else ''}."))
    parts += [
        paragraph(f"{proof.name}: {proof.outcome}, {proof.reason}") for proof in report.verified if proof.ratio is None
    ]
    if any(card.verify for card in report.advice) and not report.verified:
        parts.append(note("No change was run yet: the Verify command of a recommendation runs it."))
    if sizes:
        parts.append("<h3>Bucket sizes</h3>")
        parts.append(paragraph(f"{several(len(sizes), 'size')} predicted by replaying the recorded steps."))
        parts.append(_curve(sizes))
    if parts:
        yield Section("changes", "Changes: verified and predicted", "Changes", "".join(parts))


def _verified(proofs: Sequence[Verified]) -> Iterator[_Interval]:
    for proof in proofs:
        if proof.ratio is not None and all(map(math.isfinite, _ratios(proof))):
            saved = 1 - proof.ratio
            low = saved if proof.high_ratio is None else 1 - proof.high_ratio
            high = saved if proof.low_ratio is None else 1 - proof.low_ratio
            words = (
                f"{proof.outcome}: {percent(saved)} ({_range(low, high)}), {several(proof.trials, 'trial')} per side"
            )
            yield _Interval(f"{proof.advice} {proof.name}".strip(), low, high, saved, _VERIFIED, words)


def _ratios(proof: Verified) -> list[float]:
    return [ratio for ratio in (proof.ratio, proof.low_ratio, proof.high_ratio) if ratio is not None]


def _predicted(report: Report) -> Iterator[_Interval]:
    for card in report.advice:
        if card.saves is not None:
            yield _saving(f"{card.rule} {card.slug}", card.saves)
    for combination in report.together:
        yield _saving(" + ".join(combination.rules), combination.saves)


def _saving(name: str, saves: Saving) -> _Interval:
    low, high = saves.low_share, saves.high_share
    if saves.basis == "bound":
        return _Interval(name, low, high, None, _BOUND, f"up to {percent(high)}")
    color = _VERIFIED if saves.basis == "measured" else _PREDICTED
    return _Interval(name, low, high, saves.predicted_share, color, _range(low, high))


def _range(low: float, high: float) -> str:
    return percent(low) if low == high else f"{percent(low).removesuffix(' %')} to {percent(high)}"


def _forest(intervals: Sequence[_Interval]) -> str:
    """A row for each interval, on one axis of shares."""
    least = max(_LEAST_DRAWN, min(0.0, *(interval.low for interval in intervals)))
    room = max(0.05, *(interval.high for interval in intervals)) * 1.05 - least
    cells = []
    for interval in intervals:
        low = max(interval.low, least)
        left, wide = 100 * (low - least) / room, 100 * max(interval.high - low, 0) / room
        zero = f'<u style="left:{-100 * least / room:.2f}%"></u>'
        span = f'<i style="left:{left:.2f}%;width:{wide:.2f}%;background:{interval.color}"></i>'
        middle = interval.middle
        mark = "" if middle is None or middle < least else f'<b style="left:{100 * (middle - least) / room:.2f}%"></b>'
        cells.append(
            f'<div class="name">{text(interval.name)}</div><div class="interval">{zero}{span}{mark}</div>'
            f'<div class="value">{together(interval.words)}</div>'
        )
    ticks = [charts.Tick((share - least) / room, percent(share)) for share in _round_shares(least, least + room)]
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


def _curve(sizes: Sequence[BucketSize]) -> str:
    longest = max(size.step_ns for size in sizes) or 1
    named = []
    for size in sizes:
        name = "default" if size.cap_mb is None else f"{size.cap_mb:g} MiB"
        words = f"{ns_as_ms(size.step_ns)} ms, {several(size.buckets, 'bucket')}"
        part = charts.Part(size.step_ns / longest, COLORS["memset"], f"{name}: {words}", words)
        named.append((name, charts.bar([part])))
    return charts.rows(named)

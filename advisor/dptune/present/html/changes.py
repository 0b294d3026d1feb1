"""What was tried: verified changes and predictions with their intervals, and the bucket sizes of a search."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from dptune.advice import Report, Saving, Verified
from dptune.predicted import BucketSize
from dptune.present.amounts import ns_as_ms, percent, several
from dptune.present.html import charts
from dptune.present.html.intervals import Interval, forest
from dptune.present.html.markup import Section, key, note, paragraph
from dptune.present.html.style import COLORS

_VERIFIED, _PREDICTED, _BOUND = COLORS["compute"], COLORS["copy"], COLORS["blocking"]


def changes(report: Report, sizes: Sequence[BucketSize]) -> Iterator[Section]:
    """Nothing where nothing was verified or predicted."""
    intervals = [*_verified(report.verified), *_predicted(report)]
    parts = []
    if intervals:
        parts.append(forest(intervals))
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
        yield Section("changes", f"Changes: {_kinds(intervals, report, sizes)}", "Changes", "".join(parts))


def _kinds(intervals: Sequence[Interval], report: Report, sizes: Sequence[BucketSize]) -> str:
    """How the changes on the page were found: `verified and predicted`."""
    used = {interval.color for interval in intervals}
    kinds = ["verified"] if report.verified or _VERIFIED in used else []
    kinds += ["predicted"] if sizes or _PREDICTED in used else []
    return " and ".join(kinds) or "upper bounds"


def _verified(proofs: Sequence[Verified]) -> Iterator[Interval]:
    for proof in proofs:
        if proof.ratio is not None and all(map(math.isfinite, _ratios(proof))):
            saved = 1 - proof.ratio
            low = saved if proof.high_ratio is None else 1 - proof.high_ratio
            high = saved if proof.low_ratio is None else 1 - proof.low_ratio
            words = (
                f"{proof.outcome}: {percent(saved)} ({_range(low, high)}), {several(proof.trials, 'trial')} per side"
            )
            yield Interval(f"{proof.advice} {proof.name}".strip(), low, high, saved, _VERIFIED, words)


def _ratios(proof: Verified) -> list[float]:
    return [ratio for ratio in (proof.ratio, proof.low_ratio, proof.high_ratio) if ratio is not None]


def _predicted(report: Report) -> Iterator[Interval]:
    for card in report.advice:
        if card.saves is not None:
            yield _saving(f"{card.rule} {card.slug}", card.saves)
    for combination in report.together:
        yield _saving(" + ".join(combination.rules), combination.saves)


def _saving(name: str, saves: Saving) -> Interval:
    low, high = saves.low_share, saves.high_share
    if saves.basis == "bound":
        return Interval(name, low, high, None, _BOUND, f"up to {percent(high)}")
    color = _VERIFIED if saves.basis == "measured" else _PREDICTED
    return Interval(name, low, high, saves.predicted_share, color, _range(low, high))


def _range(low: float, high: float) -> str:
    return percent(low) if low == high else f"{percent(low).removesuffix(' %')} to {percent(high)}"


def _curve(sizes: Sequence[BucketSize]) -> str:
    longest = max(size.step_ns for size in sizes) or 1
    named = []
    for size in sizes:
        name = "default" if size.cap_mb is None else f"{size.cap_mb:g} MiB"
        words = f"{ns_as_ms(size.step_ns)} ms, {several(size.buckets, 'bucket')}"
        part = charts.Part(size.step_ns / longest, COLORS["memset"], f"{name}: {words}", words)
        named.append((name, charts.bar([part])))
    return charts.rows(named)

"""Latency and bandwidth of a link from message sizes and times: time = alpha + bytes / beta.

Robust: of all lines through the medians of two sizes, or through one with alpha at 0, the one with the least sum of
|log(fitted / measured)|. By the ratio, so that small messages, where alpha shows, weigh as much as large ones, where
beta does, and so that twice as long is as far off as half as long; without squares, so that a size that something
disturbed does not draw the line to it.
Source of the model: R. W. Hockney, "The communication challenge for MPP", Parallel Computing 20 (1994).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dptune.measure.intervals import Ints

Floats = NDArray[np.float64]
Confidence = Literal["high", "medium", "low"]

LEAST_SIZES = 3  # two points always lie on a line
LEAST_SPAN = 8  # largest / smallest message: closer together, noise decides the slope
_MOST_SIZES = 48  # every pair is tried
_HIGH_SIZES, _HIGH_SPAN, _HIGH_RESIDUAL, _HIGH_LARGEST = 5, 64, 0.10, 0.30
_MEDIUM_RESIDUAL = 0.25


@dataclass(frozen=True)
class Times:
    """Times of the calls of one message size: median and quartiles, ns, of so many."""

    message_bytes: int
    median_ns: float
    q1_ns: float
    q3_ns: float
    calls: int


@dataclass(frozen=True)
class Fit:
    """alpha in ns and beta in bytes per ns (GB/s), each with the lowest and highest that the same data allow.

    Those are the extremes over the fits that leave one size out, and those of all first and all third quartiles.
    `residual_share` is the median over sizes of |measured - fitted| / measured; confidence goes by the largest, too.
    """

    alpha_ns: float
    alpha_low_ns: float
    alpha_high_ns: float
    beta_gb_per_s: float
    beta_low_gb_per_s: float
    beta_high_gb_per_s: float
    residual_share: float
    confidence: Confidence


def times(message_bytes: int, durations_ns: Sequence[float]) -> Times:
    """The times of one size from those of its calls."""
    q1, median, q3 = np.percentile(np.asarray(durations_ns, dtype=np.float64), [25, 50, 75]).tolist()
    return Times(message_bytes, median, q1, q3, len(durations_ns))


def pooled(message_bytes: Ints, durations_ns: Ints) -> list[Times]:
    """The times of each size, ascending, from sizes and durations of calls (int64, of one length)."""
    return [times(size, durations_ns[message_bytes == size].tolist()) for size in np.unique(message_bytes).tolist()]


def fit(sizes: Sequence[Times]) -> tuple[Fit | None, str]:
    """The fit over sizes in ascending order, and why where there is none."""
    if len(sizes) < LEAST_SIZES or sizes[-1].message_bytes < LEAST_SPAN * max(sizes[0].message_bytes, 1):
        seen = f"{len(sizes)} message size{'s' if len(sizes) != 1 else ''}"
        if len(sizes) > 1:
            seen += f" ({sizes[0].message_bytes:,} to {sizes[-1].message_bytes:,} bytes)"
        return None, f"{seen}; a fit needs at least {LEAST_SIZES} sizes, the largest {LEAST_SPAN}x the smallest"
    if len(sizes) > _MOST_SIZES:
        chosen = np.linspace(0, len(sizes) - 1, _MOST_SIZES).round().astype(np.int64)
        sizes = [sizes[at] for at in chosen.tolist()]
    size = np.array([size_times.message_bytes for size_times in sizes], dtype=np.float64)
    median = np.array([size_times.median_ns for size_times in sizes], dtype=np.float64)
    if not (median > 0).all():
        return None, "some calls took no time that could be measured"
    best = _line(size, median)
    if best is None:
        return None, "the time does not grow with the size: the messages are too small to show a bandwidth"
    alpha, slope = best
    left_out = [np.arange(len(size)) != at for at in range(len(size))]
    quartiles = np.array([(size_times.q1_ns, size_times.q3_ns) for size_times in sizes], dtype=np.float64).T
    lines = [
        best,
        *(_line(size[kept], median[kept]) for kept in left_out),
        *(_line(size, np.maximum(quartile, 1.0)) for quartile in quartiles),
    ]
    if any(line is None for line in lines):
        return None, "the time grows with the size at one message size only: more sizes or calls are needed"
    alphas, slopes = np.array([line for line in lines if line is not None]).T
    residuals = np.abs(alpha + slope * size - median) / median
    residual = float(np.median(residuals))
    return Fit(
        alpha_ns=alpha,
        alpha_low_ns=float(alphas.min()),
        alpha_high_ns=float(alphas.max()),
        beta_gb_per_s=1 / slope,
        beta_low_gb_per_s=float(1 / slopes.max()),
        beta_high_gb_per_s=float(1 / slopes.min()),
        residual_share=residual,
        confidence=_confidence(len(size), size[-1] / max(size[0], 1.0), residual, float(residuals.max())),
    ), ""


def _line(size: Floats, time: Floats) -> tuple[float, float] | None:
    """alpha >= 0 and slope > 0 of the best line; None where a time that is the same for all sizes is as good."""
    first, second = np.triu_indices(len(size), 1)
    slope = (time[second] - time[first]) / (size[second] - size[first])
    alpha = time[first] - slope * size[first]
    possible = (slope > 0) & (alpha >= 0)
    through_zero = time / size if size.all() else np.zeros(0)  # it gives a message of no bytes no time
    slopes = np.concatenate((slope[possible], through_zero))
    alphas = np.concatenate((alpha[possible], np.zeros(len(through_zero))))
    if not len(slopes):
        return None
    errors = _far(alphas[:, np.newaxis] + slopes[:, np.newaxis] * size, time)
    if errors.min() >= _far(time[:, np.newaxis], time).min():
        return None
    best = int(errors.argmin())
    return float(alphas[best]), float(slopes[best])


def _far(fitted: Floats, time: Floats) -> Floats:
    """How far each row of fitted times is from the measured ones: the sum of |log| of the ratios."""
    return np.asarray(np.abs(np.log(fitted / time)).sum(axis=1), dtype=np.float64)


def _confidence(sizes: int, span: float, residual: float, largest: float) -> Confidence:
    if sizes >= _HIGH_SIZES and span >= _HIGH_SPAN and residual <= _HIGH_RESIDUAL and largest <= _HIGH_LARGEST:
        return "high"
    return "medium" if residual <= _MEDIUM_RESIDUAL else "low"

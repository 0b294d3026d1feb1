"""How many steps have to be traced, by how far step times vary.

A prediction is checked by the steps that it was not made from: the replay of every second traced step against the
others. Of n traced steps with a relative spread s the median of such a half is uncertain by 1.25 s / sqrt(n / 2)
(1.25 is the factor of a median against a mean). That is to be no more than half of the 10 % beyond which a replay
predicts bounds only. The spread is that of the step times of the untraced window, or of the traced steps so far,
whichever is more: quartiles, so that a few late steps do not count.
"""

from __future__ import annotations

from math import ceil
from statistics import quantiles

_UNCERTAIN = 0.05  # of a half's median
_OF_A_MEDIAN = 1.25
_QUARTILES = 1.349  # apart, in standard deviations of a normal distribution
_LEAST_TIMES = 4


class Spread:
    """Durations of steps, by the phase that they were in."""

    def __init__(self) -> None:
        self._durations_s: dict[str, list[float]] = {}
        self._last_s: float | None = None

    def mark(self, phase: str, now_s: float) -> None:
        """A step of that phase has ended."""
        if self._last_s is not None:
            self._durations_s.setdefault(phase, []).append(now_s - self._last_s)
        self._last_s = now_s

    def needed(self, least: int, most: int) -> int:
        """Steps to trace; as long as no spread is known, one more than the least."""
        known = [times for phase in ("untraced", "light") if len(times := self._of(phase)) >= _LEAST_TIMES]
        if not known:
            return min(least + 1, most)
        needed = 2 * (_OF_A_MEDIAN * max(map(_relative, known)) / _UNCERTAIN) ** 2
        return most if needed >= most else max(least, ceil(needed))

    def _of(self, phase: str) -> list[float]:
        return self._durations_s.get(phase, [])


def _relative(durations_s: list[float]) -> float:
    """The spread of durations as a share of their median."""
    low, middle, high = quantiles(durations_s, n=4, method="inclusive")
    return (high - low) / _QUARTILES / middle if middle > 0 else 0.0

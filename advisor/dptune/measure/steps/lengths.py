"""How long steps take, over all ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from dptune.measure.views import RankView, busiest


def lengths(views: Sequence[RankView]) -> dict[int, int]:
    """By number, ascending: the median over ranks of a step's window on the rank's busiest device."""
    found: dict[int, list[int]] = defaultdict(list)
    for view in views:
        for window in busiest(view):
            found[window.number].append(window.length_ns)
    return {number: round(float(np.median(found[number]))) for number in sorted(found)}


def ended(views: Sequence[RankView]) -> dict[int, int]:
    """Those of them whose end was recorded."""
    open_ended = {window.number for view in views for window in busiest(view) if window.open_ended}
    return {number: ns for number, ns in lengths(views).items() if number not in open_ended}

"""From where on a value is an outlier among many."""

from __future__ import annotations

import numpy as np

from dptune.measure.communication.lag import Floats

_DEVIATIONS = 5.0  # of normal noise 1 value in 3.5 million lies beyond; noise of computers has longer tails
_MAD_OF_NORMAL = 1.4826  # standard deviation / median absolute deviation of a normal distribution


def upper_limit(values: Floats, least: float) -> float:
    """`least`, or the median plus five robust standard deviations where that is more."""
    if not len(values):
        return least
    middle = float(np.median(values))
    deviation = _MAD_OF_NORMAL * float(np.median(np.abs(values - middle)))
    return max(least, middle + _DEVIATIONS * deviation)

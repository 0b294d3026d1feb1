"""Noise that two simulations share: the same factor for the same site, step and rank."""

from __future__ import annotations

import math

import numpy as np

_NORMAL = np.random.default_rng(45).standard_normal(1 << 16).clip(-3, 3).tolist()  # cut at three deviations


def _mixed(number: int) -> int:
    """The finalizer of MurmurHash3, which spreads 32 bits over 32 bits."""
    number = ((number ^ (number >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    number = ((number ^ (number >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return number ^ (number >> 16)


class Factors:
    """Factors on durations: the same for the same site, step and rank."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._bases: dict[tuple[int, int], int] = {}

    def factor(self, deviation: float, site: int, step: int, rank: int = 0) -> float:
        if not deviation:
            return 1.0
        base = self._bases.get((step, rank))
        if base is None:
            base = self._bases[step, rank] = _mixed(_mixed(_mixed(self.seed) ^ step) ^ rank)
        mixed = ((site ^ base) * 0x85EBCA6B) & 0xFFFFFFFF
        mixed = ((mixed ^ (mixed >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
        return math.exp(deviation * _NORMAL[mixed >> 16])

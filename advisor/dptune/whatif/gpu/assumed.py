"""Figures that a recording does not hold: each with the least, the middle and the most that it may be."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Side(IntEnum):
    """Which end of what is assumed a change is made with, by how much it saves."""

    LEAST = 0
    MIDDLE = 1
    MOST = 2


class Assumed(NamedTuple):
    """A figure with which a change saves least, one in the middle, and one with which it saves most."""

    least: float
    middle: float
    most: float

    def at(self, side: Side) -> float:
        """The figure of one side."""
        return self[side]

    def without(self, gone: float) -> Assumed:
        """Each as a share of what is left once so much of that share is gone."""
        return Assumed(*(share * (1 - gone) / (1 - share * gone) for share in self))

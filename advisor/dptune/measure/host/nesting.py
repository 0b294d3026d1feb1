"""Events inside events, level by level."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dptune.measure.host.enclosing import NOWHERE
from dptune.measure.intervals import Ints, Mask


@dataclass(frozen=True, eq=False)
class Nesting:
    """`above` is by event the innermost one around it, NOWHERE for none; int64, shape (events,).

    `levels` are the events by how many are around them, the outermost first, each ascending.
    """

    above: Ints
    levels: tuple[Ints, ...]

    @classmethod
    def of(cls, above: Ints) -> Nesting:
        """From the innermost event around each."""
        depth = (above != NOWHERE).astype(np.int64)
        up = above.copy()
        while len(inside := np.flatnonzero(up != NOWHERE)):
            farther = up[inside]
            depth[inside] += depth[farther]
            up[inside] = up[farther]
        order = np.argsort(depth, kind="stable")
        levels = np.split(order, np.flatnonzero(np.diff(depth[order])) + 1)
        return cls(above, tuple(levels) if len(above) else ())

    @property
    def outer_first(self) -> Ints:
        """Every event after the one around it; of one level in the order of the first event inside each."""
        first = np.arange(len(self.above))
        for level in reversed(self.levels[1:]):
            np.minimum.at(first, self.above[level], first[level])
        parts = [level[np.argsort(first[level], kind="stable")] for level in self.levels]
        return np.concatenate([np.zeros(0, dtype=np.int64), *parts])

    def inherited(self, own: Mask) -> Mask:
        """Which events have it, or are inside one that does."""
        found = own.copy()
        for level in self.levels[1:]:
            found[level] |= found[self.above[level]]
        return found

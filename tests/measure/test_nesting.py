"""Events inside events, against a walk up from each."""

from __future__ import annotations

from random import Random

import numpy as np

from dptune.measure.host.enclosing import NOWHERE
from dptune.measure.host.nesting import Nesting


def forests() -> list[list[int]]:
    """By event the one around it, in any order: none, alone, a chain of 100, and random ones."""
    draw = Random(0)
    found = [[], [NOWHERE], [*range(1, 100), NOWHERE], [NOWHERE, *range(99)]]
    for _ in range(200):
        order = list(range(draw.randrange(2, 12)))
        draw.shuffle(order)
        above = [NOWHERE] * len(order)
        for place in range(1, len(order)):
            if draw.random() < 0.75:
                above[order[place]] = order[draw.randrange(place)]
        found.append(above)
    return found


def test_levels_order_and_what_is_inherited() -> None:
    draw = Random(1)
    for above in forests():
        around = [[at] for at in range(len(above))]  # each event and those around it
        for chain in around:
            while above[chain[-1]] != NOWHERE:
                chain.append(above[chain[-1]])
        nesting = Nesting.of(np.array(above, dtype=np.int64))
        depth = [len(chain) - 1 for chain in around]
        levels = [[at for at in range(len(above)) if depth[at] == level] for level in sorted(set(depth))]
        assert [level.tolist() for level in nesting.levels] == levels
        first = [min(inner for inner in range(len(above)) if at in around[inner]) for at in range(len(above))]
        expected = sorted(range(len(above)), key=lambda at, depth=depth, first=first: (depth[at], first[at]))
        assert nesting.outer_first.tolist() == expected
        own = [draw.random() < 0.2 for _ in above]
        inherited = nesting.inherited(np.array(own, dtype=np.bool_))
        assert inherited.tolist() == [any(own[outer] for outer in chain) for chain in around]

"""The order of the trials: in pairs of one A and one B, each pair shuffled, so that drift meets both sides alike."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from dptune.prove.result import SideName, Trial


def sides(seed: int) -> Iterator[SideName]:
    """The side of each trial, without end; the same for the same seed."""
    choose = random.Random(seed)
    while True:
        pair: list[SideName] = ["A", "B"]
        choose.shuffle(pair)
        yield from pair


def following(seed: int, done: Sequence[Trial]) -> Iterator[SideName]:
    """The sides of the trials after those that are done, which may have ended anywhere, or lack some of a side."""
    order = sides(seed)
    for _ in done:
        next(order)
    yield from order

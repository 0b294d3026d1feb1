"""Random numbers that training steps draw, and which ranks draw the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass
class StepDrawFacts:
    """A line of the script that draws a tensor of random numbers in the warm-up steps, at least one for each sample.

    `operator` is torch's, `size` that of the first tensor. Equal `values`, one item for each call, are equal numbers.
    `of_batch`: as many rows as the batch that was drawn last; without a loader this is not known.
    """

    where: str
    operator: str
    size: list[int] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    of_batch: bool = False


class _OfRank(Protocol):
    @property
    def step_draws(self) -> list[StepDrawFacts]: ...


def equal_draws(ranks: Sequence[_OfRank], least: int) -> list[StepDrawFacts]:
    """Lines that drew the same numbers on all ranks, in at least `least` calls, and others in each call."""
    if len(ranks) < 2:
        return []
    found = []
    for first in ranks[0].step_draws:
        key = (first.where, first.operator)
        same = [
            next((each for each in facts.step_draws if (each.where, each.operator) == key), None) for facts in ranks
        ]
        calls = min(len(each.values) if each is not None else 0 for each in same)
        drawn = first.values[:calls]
        if calls < least or len(set(drawn)) < calls:
            continue
        if all(each is not None and each.values[:calls] == drawn for each in same):
            found.append(first)
    return found

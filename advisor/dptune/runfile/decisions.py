"""Decisions about the training that a rank makes by comparing a score with the best one so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Protocol


@dataclass
class DecisionFacts:
    """A condition of the training loop, or of a function that it calls, that every rank decides for itself.

    `best` is what it compares with, as the script names it, and `value` its value when facts were last collected, in
    step `step`. `ends` the training, `keeps` weights, or else changes the learning rate. `where`: the condition's line.
    """

    where: str
    best: str
    value: float
    step: int = 0
    ends: bool = False
    keeps: bool = False


@dataclass(frozen=True)
class DifferentDecision:
    """A decision, with the value that each rank compares with."""

    facts: DecisionFacts
    values: tuple[float, ...]


class _OfRank(Protocol):
    @property
    def decisions(self) -> list[DecisionFacts]: ...


def different_decisions(ranks: Sequence[_OfRank], apart: float) -> list[DifferentDecision]:
    """Those that all ranks made by the same step, and by values of their own that differ by more than `apart`."""
    if len(ranks) < 2:
        return []
    found = []
    for first in ranks[0].decisions:
        same = [
            next((each for each in facts.decisions if (each.where, each.best) == (first.where, first.best)), None)
            for facts in ranks
        ]
        values = [each.value for each in same if each is not None and each.step == first.step]
        if len(values) < len(ranks) or not all(map(isfinite, values)):
            continue
        if max(values) - min(values) > apart * max(map(abs, values)):
            found.append(DifferentDecision(first, tuple(values)))
    return found

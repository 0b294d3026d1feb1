"""How many targets the losses of backward passes count, and how much each target weighs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

_EQUAL = 0.02  # relative difference of the factors of losses that are averaged


@dataclass
class TargetCountFacts:
    """One loss, in backward passes from one line: lists have an entry for each pass.

    `loss`: the name of its backward function; `classes`: the length of its second dimension, 0 for a masked sum.
    `passes`: the number of the pass on this rank, from 0; `steps`: the optimizer steps before it. `counts`: the targets
    that are neither ignored nor masked. `weights`: the factor of their mean in what the pass starts from: 1 for a mean
    loss, `count / divisor` for a sum that is divided. `drawn`: the batches drawn from loaders before the pass, of which
    there are `loaders`.
    """

    loss: str
    classes: int
    where: str | None = None
    loaders: int = 0
    passes: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    drawn: list[int] = field(default_factory=list)
    counts: list[float] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class CountSpread:
    """How far the counts of means that are averaged differ.

    `spread`: their standard deviation relative to their mean, from `groups` of `size` counts each; `rest`: without the
    group that differs the most. `typical` and `largest`: the median and the largest ratio of two counts in a group.
    """

    spread: float
    rest: float
    groups: int
    size: int
    typical: float
    largest: float

    @property
    def comparisons(self) -> int:
        """The degrees of freedom of the spread."""
        return self.groups * (self.size - 1)


def between_ranks(of_ranks: Sequence[TargetCountFacts]) -> CountSpread | None:
    """Of the passes of the same number; None for one rank, or where the losses are no means of each rank's count."""
    by_pass: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for facts in of_ranks:
        for made, count, weight in zip(facts.passes, facts.counts, facts.weights, strict=False):
            by_pass[made].append((count, weight))
    return _spread(group for group in by_pass.values() if len(group) == len(of_ranks))


def between_micro_batches(facts: TargetCountFacts) -> CountSpread | None:
    """Of the passes of the same optimizer step, but for the last step seen, which may not be whole.

    None unless each has a batch of the same loader, or all have parts of one batch and are divided by their number:
    otherwise they may belong to several tasks.
    """
    by_step: dict[int, list[int]] = defaultdict(list)
    whole = min(len(facts.steps), len(facts.drawn), len(facts.counts), len(facts.weights))
    for at, step in enumerate(facts.steps[:whole]):
        by_step[step].append(at)
    groups = [by_step[step] for step in sorted(by_step)][:-1]
    usual = max((len(group) for group in groups), default=0)
    groups = [group for group in groups if len(group) == usual]
    if usual < 2 or not (_draws_each(facts, groups) or all(_is_divided(facts, group) for group in groups)):
        return None
    return _spread([(facts.counts[at], facts.weights[at]) for at in group] for group in groups)


def _draws_each(facts: TargetCountFacts, groups: Sequence[Sequence[int]]) -> bool:
    """Whether steps draw as many batches of one loader as they have passes."""
    following = [pair for pair in pairwise(groups) if pair[1][0] - pair[0][0] == len(pair[0])]
    new = (facts.drawn[later[0]] - facts.drawn[earlier[0]] == len(earlier) for earlier, later in following)
    return facts.loaders == 1 and bool(following) and all(new)


def _is_divided(facts: TargetCountFacts, group: Sequence[int]) -> bool:
    return all(abs(facts.weights[at] * len(group) - 1) < _EQUAL for at in group)


def _spread(groups: Iterable[list[tuple[float, float]]]) -> CountSpread | None:
    squares, ratios, size = [], [], 0
    for group in groups:
        counts, weights = ([pair[at] for pair in group] for at in (0, 1))
        if min(counts) < 1 or not all(math.isfinite(value) and value > 0 for value in (*counts, *weights)):
            continue  # a loss without any target is not a number
        if max(weights) > (1 + _EQUAL) * min(weights):
            return None
        size = len(counts)
        mean = sum(counts) / size
        if size > 1 and math.isfinite(mean):
            squares.append(sum((count / mean - 1) ** 2 for count in counts) / (size - 1))
            ratios.append(max(counts) / min(counts))
    if not squares:
        return None
    rest = sorted(squares)[:-1]
    return CountSpread(_root_of_mean(squares), _root_of_mean(rest), len(squares), size, median(ratios), max(ratios))


def _root_of_mean(squares: Sequence[float]) -> float:
    return math.sqrt(sum(squares) / len(squares)) if squares else 0.0

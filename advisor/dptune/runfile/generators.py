"""Random number generators that several processes hold in the same state."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field


@dataclass
class GeneratorFacts:
    """A random number generator that samples are made with, and its state when a process first drew from it.

    `name` is `Class.attribute` of the data set, transform or collate function that holds it, or the name of a global
    variable; `kind` its class, `where` the script's line that assigns it. One item for each process that prepares
    batches: `workers` is its number (-1: the training process), `epochs` counts the loader's iterators from 0, and
    equal `states` draw the same numbers.
    """

    name: str
    kind: str
    where: str | None = None
    workers: list[int] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    states: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class EqualGenerators:
    """How many workers of a rank, ranks, and epochs drew from the same state of a generator; 1 where none shared it."""

    facts: GeneratorFacts
    workers: int
    ranks: int
    epochs: int


def equal_generators(ranks: Sequence[Sequence[GeneratorFacts]]) -> list[EqualGenerators]:
    """The generators that two or more processes drew from in the same state, of the same loader on each rank."""
    by_name: dict[str, list[tuple[int, GeneratorFacts]]] = defaultdict(list)
    for rank, of_rank in enumerate(ranks):
        for facts in of_rank:
            by_name[facts.name].append((rank, facts))
    found = []
    for same in by_name.values():
        drawn = [
            (rank, *process)
            for rank, facts in same
            for process in zip(facts.workers, facts.epochs, facts.states, strict=False)
        ]
        equal = EqualGenerators(
            same[0][1],
            workers=_most((rank, epoch, state) for rank, worker, epoch, state in drawn),
            ranks=_most((worker, epoch, state) for _, worker, epoch, state in drawn),
            epochs=_most((rank, worker, state) for rank, worker, _, state in drawn),
        )
        if max(equal.workers, equal.ranks, equal.epochs) > 1:
            found.append(equal)
    return found


def _most(keys: Iterable[Hashable]) -> int:
    return max(Counter(keys).values(), default=0)

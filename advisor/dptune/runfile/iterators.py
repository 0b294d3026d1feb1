"""Where the script makes iterators of a DataLoader, and which of them serve one step only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dptune.runfile.facts import Facts

_MOST_OF_EPOCH = 0.5  # an iterator that serves more of an epoch before the next is made has done its work


@dataclass
class IteratorFacts:
    """A line of the script that makes iterators of a DataLoader, in the untraced window.

    `function` is the function of that line, `loader` the line that makes the DataLoader; `dataset`, `samples`,
    `sampler` and `num_workers` are those of the DataLoader. `made` counts the iterators, `batches` the batches drawn
    from them, `used_up` the iterators that were drawn from to their end, and `other_data` those over another data set
    than the one before; `epoch_batches` is the number of batches that one can return. `spent_ns`, by step of the
    window, is the time to make them, to draw their first batch, and to end them with their workers, without the
    preparation of batches in this process.
    """

    where: str
    function: str = ""
    loader: str | None = None
    dataset: str = ""
    samples: int | None = None
    sampler: str = ""
    num_workers: int = 0
    made: int = 0
    batches: int = 0
    used_up: int = 0
    other_data: int = 0
    epoch_batches: int | None = None
    spent_ns: list[int] = field(default_factory=list)

    @property
    def is_left_early(self) -> bool:
        """Whether its iterators could return more batches of the same data than the script draws."""
        if self.other_data or 2 * self.used_up >= self.made:
            return False
        return self.epoch_batches is None or self.batches < _MOST_OF_EPOCH * self.made * self.epoch_batches


@dataclass(frozen=True)
class NewIterators:
    """One line that makes iterators which the script leaves early.

    `a_step` is how many it makes in a step, on the rank with most; `share` the largest share that a rank spends on
    them, of the time of its steps; `spent_ns` their time by rank and step.
    """

    line: IteratorFacts
    a_step: float
    share: float
    spent_ns: dict[int, list[int]]


def new_iterators(facts: Sequence[Facts]) -> list[NewIterators]:
    """Over all ranks, by line, most time first."""
    found: dict[tuple[str, str], NewIterators] = {}
    for rank_facts in facts:
        window = rank_facts.window("untraced")
        if window is None or not sum(window.durations_ns):
            continue
        for line in rank_facts.iterators:
            if len(line.spent_ns) != window.steps or not line.is_left_early:
                continue
            known = found.get((line.where, line.function))
            share = min(1.0, sum(line.spent_ns) / sum(window.durations_ns))
            found[line.where, line.function] = NewIterators(
                line=line if known is None else known.line,
                a_step=max(line.made / window.steps, known.a_step if known else 0.0),
                share=max(share, known.share if known else 0.0),
                spent_ns={**(known.spent_ns if known else {}), rank_facts.rank: line.spent_ns},
            )
    return sorted(found.values(), key=lambda iterators: -iterators.share)

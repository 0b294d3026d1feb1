"""Updates of 16-bit parameters that rounding loses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace


@dataclass
class LostUpdateFacts:
    """Of an optimizer that updates 16-bit parameters: how many of them a step leaves exactly as they were.

    `where` is the script's line that makes it, `dtype` that of most of these parameters, and `parameters` their number
    on this rank. Counted in warm-up steps, on a sample: `sampled` are those with a nonzero gradient in each step, and
    `unchanged` those of them whose values did not change. `learning_rate` is that of the last of these steps. Steps
    far below the highest learning rate are left out.
    """

    optimizer: str
    where: str | None = None
    dtype: str = ""
    parameters: int = 0
    learning_rate: float = 0.0
    sampled: list[int] = field(default_factory=list)
    unchanged: list[int] = field(default_factory=list)

    @property
    def least_share(self) -> float | None:
        """The share of sampled parameters left unchanged, in the step that changed most of them; None without steps."""
        counts = zip(self.unchanged, self.sampled, strict=False)
        return min((unchanged / sampled for unchanged, sampled in counts if sampled), default=None)


def over_ranks(ranks: Sequence[Sequence[LostUpdateFacts]]) -> list[LostUpdateFacts]:
    """The same optimizers with the counts of all ranks added up, in the steps that all of them counted.

    `parameters` are those of the rank that holds most.
    """
    by_optimizer: dict[tuple[str, str | None, int], list[LostUpdateFacts]] = {}
    for of_rank in ranks:
        seen: Counter[tuple[str, str | None]] = Counter()
        for facts in of_rank:
            seen[facts.optimizer, facts.where] += 1
            key = (facts.optimizer, facts.where, seen[facts.optimizer, facts.where])
            by_optimizer.setdefault(key, []).append(facts)
    return [
        replace(
            same[0],
            parameters=max(facts.parameters for facts in same),
            sampled=[sum(counts) for counts in zip(*(facts.sampled for facts in same), strict=False)],
            unchanged=[sum(counts) for counts in zip(*(facts.unchanged for facts in same), strict=False)],
        )
        for same in by_optimizer.values()
    ]

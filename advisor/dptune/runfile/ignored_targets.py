"""Rows of logits that no target is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class IgnoredTargetFacts:
    """Of the cross entropies over that many classes: for how many positions logits are computed, and how many count.

    By backward pass, over all calls of the loss in it: `rows` of the output projection, `labelled` targets that are
    neither `ignore_index` nor masked, and `padding`: other targets after the last labelled one of their sequence.
    `where` is the script's line that calls the loss.
    """

    classes: int
    where: str | None = None
    rows: list[int] = field(default_factory=list)
    labelled: list[int] = field(default_factory=list)
    padding: list[int] = field(default_factory=list)

    @property
    def unread_share(self) -> float:
        """The share of rows that have no label."""
        return 1 - sum(self.labelled) / sum(self.rows)

    @property
    def unread_beside_padding(self) -> float:
        """The share of rows without a label among those that are not padding; 0 if all are."""
        others = sum(self.rows) - sum(self.padding)
        return 1 - sum(self.labelled) / others if others > 0 else 0.0


def ignored_over_ranks(ranks: Sequence[Sequence[IgnoredTargetFacts]]) -> list[IgnoredTargetFacts]:
    """One for each number of classes, with the passes of all ranks."""
    found: dict[int, IgnoredTargetFacts] = {}
    for of_rank in ranks:
        for facts in of_rank:
            merged = found.setdefault(facts.classes, IgnoredTargetFacts(facts.classes))
            merged.where = merged.where or facts.where
            merged.rows += facts.rows
            merged.labelled += facts.labelled
            merged.padding += facts.padding
    return list(found.values())

"""Ratios of probabilities under a new and an old policy that losses clip."""

from __future__ import annotations

from dataclasses import dataclass

LEAST_PASSES, LEAST_UPDATES = 3, 2


@dataclass
class PolicyRatioFacts:
    """Clipped losses of policies: `ones` of `passes` backward passes have a ratio of exactly 1 for each sample.

    `updates`: between how many of these passes parameters below the ratio changed. `samples`: ratios of the largest
    pass. `seen_again`: the largest share of the samples of a pass that earlier passes had, by what the policy was
    given. `where`: the line that computes the ratio; `passes_seen`: all backward passes that were read.
    """

    where: str | None = None
    passes: int = 0
    ones: int = 0
    updates: int = 0
    samples: int = 0
    seen_again: float = 0.0
    passes_seen: int = 0

    @property
    def stays_one(self) -> bool:
        """Whether clipping had no effect in any pass, also after updates of the parameters.

        In the first pass after samples were collected the ratio is 1, or nearly so: a pass that a single update
        precedes may be that of the next samples.
        """
        return self.ones == self.passes >= LEAST_PASSES and self.updates >= LEAST_UPDATES

"""Gradients that are cleared before an optimizer has used them, and those that add up until it does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median_low

_LEAST_STEPS = 2  # a single step may be an exception, for example after a batch without a finite loss
_MOST_STEPS = 0.5  # of the steps; two optimizers that step in turn may each have half of them


@dataclass
class DiscardedGradientFacts:
    """Backward passes of a rank's warm-up steps, and those whose gradients were cleared before any optimizer stepped.

    By optimizer step that had such a pass or a used one: `passes` since the step before, and `discarded` of them. A
    discarded pass comes from the same lines as the pass that the step uses, the weights did not change between the pass
    and the clearing, and the step's gradients are those of the last pass, up to a factor. `added`: of a step in which
    all gradients add up the passes, else 0: each pass has a forward pass of its own, and nothing changes weights or
    gradients between two of them. Empty in recordings of older versions. `where` is the script's line that clears, None
    for gradients set to None by hand; `backward_where` the line of the passes.
    """

    where: str | None = None
    backward_where: str | None = None
    passes: list[int] = field(default_factory=list)
    discarded: list[int] = field(default_factory=list)
    added: list[int] = field(default_factory=list)

    @property
    def usually_added(self) -> int:
        """The passes of the median step whose gradients add up; 0 where too few steps were seen."""
        return median_low(self.added) if len(self.added) >= _LEAST_STEPS else 0

    @property
    def step_share(self) -> float:
        """The share of steps with discarded gradients; 0 where too few steps were seen."""
        if len(self.discarded) < _LEAST_STEPS:
            return 0.0
        return sum(discarded > 0 for discarded in self.discarded) / len(self.discarded)

    @property
    def usual(self) -> tuple[int, int]:
        """Passes and discarded passes of the median step among those that have any; 0 and 0 without one."""
        steps = sorted(step for step in zip(self.passes, self.discarded, strict=True) if step[1])
        return steps[len(steps) // 2] if steps else (0, 0)


def discarding(ranks: Sequence[DiscardedGradientFacts | None]) -> DiscardedGradientFacts | None:
    """Those of the first rank that discards gradients in most of its steps; None without one."""
    return next((facts for facts in ranks if facts is not None and facts.step_share >= _MOST_STEPS), None)

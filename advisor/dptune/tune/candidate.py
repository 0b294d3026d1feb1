"""A change that a search may try, and what it is expected to save."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from dptune.advice import Basis, Change
from dptune.knobs import Value

LEAST_GAIN = 0.01  # of the time per sample: a change that saves less is not worth a trial
_PART_OF_BOUND = 0.5  # of an upper bound that orders a candidate: the middle between nothing and all of it
_UNPREDICTED = 0.02  # orders candidates without a prediction behind all that are predicted to save more


@dataclass(frozen=True)
class Candidate:
    """One change: the settings of a recommendation, of the predicted search, or one that nothing predicts.

    `low_share` and `high_share`: what it is predicted to save of the time per sample, and `basis` on what ground; ""
    if nothing predicts it. `subjects`: the parts of training that it changes (`loader`, `ddp`): two changes of one part
    may save the same time.
    """

    name: str
    changes: tuple[Change, ...] = ()
    rule: str = ""
    title: str = ""
    numerics: Literal["same", "changes"] = "same"
    low_share: float = 0.0
    high_share: float = 0.0
    basis: Basis | Literal[""] = ""
    subjects: frozenset[str] = frozenset()

    @property
    def settings(self) -> dict[str, Value]:
        """The values that it sets, by knob name."""
        return {change.knob: change.then for change in self.changes}

    @property
    def expected(self) -> float:
        """The share of the time per sample that orders it: no prediction where only a bound, or nothing, is known."""
        if not self.basis:
            return _UNPREDICTED
        return _PART_OF_BOUND * self.high_share if self.basis == "bound" else (self.low_share + self.high_share) / 2


def combined(candidates: Sequence[Candidate]) -> tuple[Change, ...]:
    """The changes of several candidates, in their order; of two values of one knob the later one."""
    last: Mapping[str, Candidate] = {change.knob: each for each in candidates for change in each.changes}
    return tuple(change for each in candidates for change in each.changes if last[change.knob] is each)

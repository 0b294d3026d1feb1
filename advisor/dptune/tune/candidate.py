"""A change that a search may try, and what it is expected to save."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from dptune.advice import Basis, Change, Location
from dptune.knobs import ENVIRONMENT, Value, of_change, written

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


def settings_at(
    where: str | None, settings: Mapping[str, Value], before: Mapping[str, Value] | None = None
) -> tuple[Change, ...]:
    """Settings of what one line creates, as changes; `before` are values in force, where they are known."""
    at = Location.parse(where)
    return tuple(Change(knob=name, now=(before or {}).get(name), then=then, at=at) for name, then in settings.items())


def unpredicted_candidate(changes: tuple[Change, ...], subject: str = "") -> Candidate:
    """Named by its first setting. `subject`: the part of training that it changes; "": the family of that setting."""
    name, then = changes[0].knob, changes[0].then
    return Candidate(
        name=f"{name}={written(then)}",
        changes=changes,
        title="not predicted",
        numerics="changes" if any(of_change(change.knob).numerics == "changes" for change in changes) else "same",
        subjects=frozenset({subject or part_of_training(name)}),
    )


def part_of_training(name: str) -> str:
    """The part of training that a knob belongs to: `loader`, `ddp`, `optimizer`; of a variable the variable itself."""
    return name if name.startswith(ENVIRONMENT) else name.partition(".")[0]

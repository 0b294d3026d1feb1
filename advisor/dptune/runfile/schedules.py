"""Learning-rate schedules, how long they are, and how far an optimizer step moves them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class SchedulerFacts:
    """One learning-rate scheduler. `base_learning_rate`: what it multiplies for the first group.

    `length`: after how many of its steps the schedule ends, None where it has no end or none is known.
    `decayed_after`: after how many the rate of one that decays to a tenth or less is at its end, or at 1 % of its first
    value. `advanced` is the number of steps that it had made whenever facts were collected, and `optimizer_steps` those
    of the optimizer then. `epochs` of the training: of Lightning's trainer, or the passes of the script's loop around
    the one that draws batches. Where Lightning steps it: `interval` (`step` or `epoch`), `frequency`, and the
    `training_steps`. `argument_lines`: `file:line` of each argument of the script's call that makes it; `stepped_at`:
    the line that calls its `step`.
    """

    name: str
    where: str | None = None
    base_learning_rate: float | None = None
    length: int | None = None
    decayed_after: int | None = None
    advanced: list[int] = field(default_factory=list)
    optimizer_steps: list[int] = field(default_factory=list)
    interval: str | None = None
    frequency: int | None = None
    epochs: int | None = None
    training_steps: int | None = None
    argument_lines: dict[str, str] = field(default_factory=dict)
    stepped_at: str | None = None

    @property
    def advance(self) -> float | None:
        """Its steps per step of the optimizer, in the recorded part; None where that is too short."""
        if not self.advanced or len(self.optimizer_steps) != len(self.advanced):
            return None
        steps = self.optimizer_steps[-1] - self.optimizer_steps[0]
        return (self.advanced[-1] - self.advanced[0]) / steps if steps >= _LEAST_STEPS else None


_LEAST_STEPS = 4


def epochs_of(length: int, batches: int, batches_per_step: int) -> tuple[int, int] | None:
    """How many whole epochs a schedule of that length is, and the optimizer steps of each; None where it is none."""
    for steps in dict.fromkeys((batches // batches_per_step, -(-batches // batches_per_step))):
        if steps and length % steps == 0:
            return length // steps, steps
    return None


@dataclass
class ZeroRateFacts:
    """An optimizer and how many of its `steps` had a learning rate of zero (`zero`), and whether the last one had.

    `where` is the line that creates the optimizer.
    """

    optimizer: str
    where: str | None = None
    steps: int = 0
    zero: int = 0
    last_zero: bool = False


@dataclass
class PlateauFacts:
    """A `ReduceLROnPlateau`, in the order in which they are made.

    `values` are what its first steps were given, and `rates` the learning rate of the first group after each. `where`
    is the line that makes it, `stepped_at` the one that steps it.
    """

    where: str | None = None
    stepped_at: str | None = None
    values: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)

"""A race: candidates against the stack they would join, in rounds of one trial each; hopeless ones leave early."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

from dptune.prove import sequential
from dptune.tune.candidate import LEAST_GAIN, Candidate
from dptune.tune.error_budget import LEVEL_OF_A_LOOK, LOOKS
from dptune.tune.timed import Timed

_FIRST_JUDGED = 2  # rounds after which a candidate may leave, or is called the leader
_MUCH_SLOWER = 1.1  # times as long in each of them
_SLOWER = 3  # rounds in each of which it is the slower
_STILL_OPEN = 0.58  # share of comparisons that it must win from the second look on, as in `prove.sequential`


@dataclass
class Arm:
    """A candidate in a race: its trials, why it left, and whether because it takes longer or must not be kept.

    `released`: it left because there was no time for it.
    """

    candidate: Candidate
    trials: list[Timed] = field(default_factory=list)
    left: str = ""
    hurts: bool = False
    released: bool = False

    @property
    def times(self) -> list[float]:
        """The times of its trials."""
        return [trial.time_ns for trial in self.trials]


@dataclass
class Race:
    """Trials of the stack and of each candidate on top of it, one of each in every whole round."""

    arms: list[Arm]
    trials: list[Timed] = field(default_factory=list)

    @property
    def stack(self) -> list[float]:
        """The times of the stack."""
        return [trial.time_ns for trial in self.trials]

    @property
    def running(self) -> list[Arm]:
        """The candidates that have not left."""
        return [arm for arm in self.arms if not arm.left and not arm.released]

    @property
    def rounds(self) -> int:
        """Whole rounds."""
        return len(self.trials)

    def order(self, seed: int) -> Iterator[Arm | None]:
        """Who runs in the next round, in random order; None is the stack."""
        runners: list[Arm | None] = [None, *self.running]
        random.Random(f"{seed}-{self.rounds}").shuffle(runners)
        yield from runners

    def gain(self, arm: Arm) -> float:
        """The share of the stack's time that it saves, as measured; negative where it takes longer."""
        rounds = min(len(arm.times), self.rounds)
        return 1 - sequential.times_as_long(self.stack[:rounds], arm.times[:rounds]) if rounds else 0.0

    @property
    def leader(self) -> Arm | None:
        """The candidate that has saved most in two rounds or more; None where none has."""
        if self.rounds < _FIRST_JUDGED:
            return None
        best = max(self.running, key=self.gain, default=None)
        return best if best is not None and self.gain(best) > 0 else None

    def interval(self, arm: Arm) -> tuple[float, float] | None:
        """The interval of its time over the stack's; None with too few rounds for one."""
        rounds = min(len(arm.times), self.rounds)
        return sequential.interval(self.stack[:rounds], arm.times[:rounds], LEVEL_OF_A_LOOK) if rounds else None

    def winner(self) -> Arm | None:
        """At a look: the fastest of those that are faster than the stack."""
        if self.rounds not in LOOKS:
            return None
        faster = [arm for arm in self.running if sequential.is_faster(self.stack, arm.times, LEVEL_OF_A_LOOK)]
        worth = [arm for arm in faster if self.gain(arm) >= LEAST_GAIN]
        return max(worth, key=self.gain, default=None)

    def drop_hopeless(self) -> None:
        """Let those leave that will hardly be shown to be faster. That can only make fewer changes be kept."""
        for arm in self.running:
            arm.left, arm.hurts = self._why_hopeless(arm)

    def drop_dominated(self) -> None:
        """Let those leave that are much slower than another candidate for the same part of training."""
        if self.rounds < _FIRST_JUDGED:
            return
        best = min(self.running, key=lambda arm: median(arm.times), default=None)
        for arm in self.running:
            if best is None or arm is best or not arm.candidate.subjects & best.candidate.subjects:
                continue
            if min(time / least for time, least in zip(arm.times, best.times, strict=True)) > _MUCH_SLOWER:
                arm.left = f"slower than {best.candidate.name} in each of {self.rounds} rounds"
                arm.hurts = True

    def release(self) -> None:
        """Let the candidate with the smallest gain so far leave, for want of time; it stays undecided."""
        min(self.running, key=self.gain).released = True

    def _why_hopeless(self, arm: Arm) -> tuple[str, bool]:
        ratios = [time / stack for stack, time in zip(self.stack, arm.times, strict=True)]
        if self.rounds >= _FIRST_JUDGED and min(ratios) > _MUCH_SLOWER:
            return f"slower in each of {self.rounds} rounds", True
        if self.rounds >= _SLOWER and min(ratios) > 1:
            return f"slower in each of {self.rounds} rounds", True
        if self.rounds not in LOOKS:
            return "", False
        if self.gain(arm) < LEAST_GAIN:
            return f"saves less than {100 * LEAST_GAIN:g} % in {self.rounds} rounds", False
        if self.rounds >= LOOKS[1] and sequential.share_faster(self.stack, arm.times) <= _STILL_OPEN:
            return f"no clear difference in {self.rounds} rounds", False
        if self.rounds >= LOOKS[-1]:
            return f"not shown to be faster in {self.rounds} rounds", False
        return "", False

    def spread(self) -> float | None:
        """The standard deviation of the stack's trials, as a share: 1.48 times the median distance from the median."""
        if self.rounds < LOOKS[0]:
            return None
        middle = median(self.stack)
        return 1.48 * median(abs(time / middle - 1) for time in self.stack)

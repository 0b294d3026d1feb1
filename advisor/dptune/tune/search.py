"""The search: races candidates, adds the winner of each race to the stack, and orders the others by what it leaves.

It sees trials only through a `Runner`, so real runs and simulated ones take the same decisions. What it does depends
on the candidates, the time limit and the trials alone, so a search that was interrupted goes on when it is given the
trials that were made before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal, Protocol

from dptune.tune import order
from dptune.tune.candidate import LEAST_GAIN, Candidate
from dptune.tune.error_budget import LOOKS, ErrorBudget
from dptune.tune.race import Arm, Race
from dptune.tune.timed import Failed, Timed

Ended = Literal["complete", "out of time", "error budget used", "cannot run", "interrupted"]
Result = Literal["kept", "dropped", "undecided"]

FINAL_PAIRS = LOOKS[0]  # at least: the stack against the original
_WIDTH = 3  # candidates in a race
_RECENT = 12  # trials that show how long the next ones take
SLACK = 1.2  # of the time for the final comparison
_STACK_FAILS = 2  # in a row, after which the search ends
_SHORTER = 0.8  # of the stack's time then: a change that was not seen to save anything may be seen to do so now


class InterruptedSearchError(Exception):
    """The user ended a trial."""


class Runner(Protocol):
    """Runs the script with changes."""

    def run(self, changes: Sequence[Candidate]) -> Timed | Failed:
        """One trial with these changes together. Raises InterruptedSearchError."""

    def altered(self, stack: Sequence[Timed], trials: Sequence[Timed], candidate: Candidate) -> str:
        """Why the candidate alters training beyond what its settings may do, by these trials; "" where it does not."""


@dataclass(frozen=True)
class Attempt:
    """What a race said about a candidate: what it saved of the time of the stack it was tried on."""

    candidate: Candidate
    stack: tuple[str, ...]
    rounds: int
    gain: float | None
    ratios: tuple[float, float] | None
    result: Result
    why: str


@dataclass(frozen=True)
class Moment:
    """A trial that is about to start: which race and round (race 0: the script as it is), and what is kept so far.

    `standing`: the trials of that race so far; None in race 0.
    """

    race: int
    round: int
    name: str
    stack: tuple[Candidate, ...]
    stack_ratio: float
    spent_s: float
    standing: Race | None = None


@dataclass
class Found:
    """What a search has found so far."""

    stack: list[Candidate] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    waiting: list[tuple[Candidate, str]] = field(default_factory=list)
    ended: Ended = "complete"
    spent_s: float = 0.0
    trial_s: float = 0.0  # the longest trial
    races: int = 0
    level_spent: float = 0.0
    failure: str = ""  # why the latest trial of the stack failed


Show = Callable[[Moment], None]
Note = Callable[[Attempt], None]


def search(
    candidates: Sequence[Candidate],
    runner: Runner,
    time_limit_s: float,
    seed: int,
    show: Show = lambda moment: None,
    note: Note = lambda attempt: None,
    spread: float = order.SPREAD,
) -> Found:
    """Search until no candidate is left that should pay, or the time for the search is up.

    The time limit includes the trials of the final comparison, which the caller makes. `show` gets each trial before it
    starts, `note` what each race said.
    """
    return _Search(candidates, runner, time_limit_s, seed, show, note, spread).run()


@dataclass
class _Waiting:
    """A candidate that may still be raced: what it may save of the original time, and when it was not seen to."""

    candidate: Candidate
    expected: float
    unseen_at: float | None = None  # the stack's ratio in that race
    measured: float = 0.0  # what it saved of the stack's time in that race
    again: bool = False  # whether it had its second race


class _Search:
    def __init__(
        self,
        candidates: Sequence[Candidate],
        runner: Runner,
        time_limit_s: float,
        seed: int,
        show: Show,
        note: Note,
        spread: float,
    ) -> None:
        self.runner, self.limit_s, self.seed, self.show, self.note = runner, time_limit_s, seed, show, note
        self.waiting = [_Waiting(candidate, candidate.expected) for candidate in candidates]
        self.budget, self.found, self.spread = ErrorBudget(), Found(), spread
        self.kept: list[tuple[Candidate, float]] = []
        self.ratio = 1.0  # time of the stack / time of the original, by the races
        self.trial_s: list[float] = []
        self.raced = False
        self.race: Race | None = None

    def run(self) -> Found:
        try:
            self.found.ended = self._ended()
        except (InterruptedSearchError, KeyboardInterrupt):  # in a trial, or between two
            self.found.ended = "interrupted"
        self.found.level_spent = self.budget.spent
        self.found.waiting = [(each.candidate, self._why_waiting(each)) for each in self.waiting]
        return self.found

    def _ended(self) -> Ended:
        if not self._next():
            return "complete"
        if self._stack_trial(0) is None:  # shows how long one takes
            return "cannot run"
        while chosen := self._next():
            affordable = min(len(chosen), _WIDTH, self.budget.candidates)
            if not affordable:
                return "error budget used"
            fits = (n for n in range(affordable, 0, -1) if not self._out_of_time(LOOKS[0] * (1 + n)))
            width = next(fits, 0 if self.found.races else 1)  # the first run may have been slow: files were not cached
            if not width:
                return "out of time"
            ended = self._race(chosen[:width])
            if ended is not None:
                return ended
        return "complete"

    def _next(self) -> list[_Waiting]:
        """Those worth a race now, by expected gain per second of proof."""
        trial_s = median(self.trial_s) if self.trial_s else 1.0

        def worth(each: _Waiting) -> float:
            gain = self._left(each)
            return gain / order.proof_s(gain, self.spread, trial_s)

        open_now = [each for each in self.waiting if self._is_open(each) and self._left(each) >= LEAST_GAIN]
        return sorted(open_now, key=worth, reverse=True) or self._second_chance()

    def _second_chance(self) -> list[_Waiting]:
        """If nothing else is left: of those that were not shown to be faster the one that saved most, once more."""
        unseen = (each for each in self.waiting if each.unseen_at is not None and not each.again)
        best = max(unseen, key=lambda each: each.measured, default=None)
        if best is None or best.measured < LEAST_GAIN:
            return []
        best.expected, best.unseen_at, best.again = best.measured * self.ratio, None, True
        return [best]

    def _left(self, each: _Waiting) -> float:
        return order.remaining(each.candidate, each.expected, self.kept, self.ratio)

    def _is_open(self, each: _Waiting) -> bool:
        return each.unseen_at is None or self.ratio <= _SHORTER * each.unseen_at

    def _why_waiting(self, each: _Waiting) -> str:
        if not self._is_open(each):
            return "saved nothing that could be seen"
        if self._left(each) < LEAST_GAIN:
            return "nothing left to save with the kept changes"
        return {"out of time": "no time left", "interrupted": "interrupted"}.get(self.found.ended, self.found.ended)

    def _out_of_time(self, trials: int) -> bool:
        """Whether so many trials more leave no time for the final comparison."""
        trial_s = median(self.trial_s[-_RECENT:])
        return self.found.spent_s + (trials + SLACK * 2 * FINAL_PAIRS) * trial_s > self.limit_s

    def _race(self, chosen: Sequence[_Waiting]) -> Ended | None:
        """Race them; the winner joins the stack. Why the search ends with it, if it does."""
        self.budget.charge(len(chosen))
        self.race = race = Race([Arm(each.candidate) for each in chosen])
        self.found.races += 1
        ended: Ended | None = None
        winner: Arm | None = None
        try:
            while race.running and winner is None and ended is None:
                self._release(race)
                ended = self._round(race)
                if ended is None:
                    self._drop_altered(race)
                    winner = race.winner()
                    if winner is None:
                        race.drop_hopeless()
                        race.drop_dominated()
        finally:
            self._close(race, chosen, winner)
        return ended

    def _release(self, race: Race) -> None:
        """Release candidates until there is time for the others up to the next look."""
        rounds = next((look for look in LOOKS if look > race.rounds), race.rounds) - race.rounds
        while len(race.running) > 1 and self._out_of_time(rounds * (1 + len(race.running))):
            race.release()

    def _round(self, race: Race) -> Ended | None:
        number = race.rounds
        for arm in race.order(self.seed + self.found.races):
            if self._out_of_time(1):
                return "out of time"
            if arm is None:
                stack_trial = self._stack_trial(number)
                if stack_trial is None:
                    return "cannot run"
                race.trials.append(stack_trial)
            else:
                self._arm_trial(arm, number)
        for arm in race.running:
            if arm.trials[number].per_sample != race.trials[number].per_sample:
                arm.left, arm.hurts = "its batch size is known on one side only, so the times cannot be compared", True
        return None

    def _stack_trial(self, number: int) -> Timed | None:
        name = " + ".join(candidate.name for candidate in self.found.stack) or "original"
        for _ in range(_STACK_FAILS):
            trial = self._trial(self.found.stack, number, name)
            if isinstance(trial, Timed):
                return trial
            self.found.failure = trial.why
        return None

    def _arm_trial(self, arm: Arm, number: int) -> None:
        timed = self._trial([*self.found.stack, arm.candidate], number, arm.candidate.name)
        if isinstance(timed, Timed):
            arm.trials.append(timed)
        else:
            arm.left, arm.hurts = timed.why, True

    def _trial(self, changes: Sequence[Candidate], number: int, name: str) -> Timed | Failed:
        found = self.found
        self.show(Moment(found.races, number + 1, name, tuple(found.stack), self.ratio, found.spent_s, self.race))
        done = self.runner.run(changes)
        self.found.spent_s += done.seconds
        if self.found.races and not self.raced:  # what the first run took says little
            self.trial_s.clear()
        self.raced = bool(self.found.races)
        self.trial_s.append(done.seconds)
        self.found.trial_s = max(self.found.trial_s, done.seconds)
        return done

    def _drop_altered(self, race: Race) -> None:
        for arm in race.running:
            if why := self.runner.altered(race.trials, arm.trials, arm.candidate):
                arm.left, arm.hurts = why, True

    def _close(self, race: Race, chosen: Sequence[_Waiting], winner: Arm | None) -> None:
        """Note what the race said, keep its winner, and put back those that may still be raced."""
        if (spread := race.spread()) is not None:
            self.spread = spread
        stack = tuple(candidate.name for candidate in self.found.stack)
        for arm, each in zip(race.arms, chosen, strict=True):
            if arm.trials or arm.left:
                attempt = _attempt(race, arm, stack, arm is winner)
                self.found.attempts.append(attempt)
                self.note(attempt)
            gain = race.gain(arm)
            if arm is winner or arm.hurts:
                self.waiting.remove(each)
            elif arm.left:
                each.unseen_at, each.measured = self.ratio, gain
            elif race.rounds >= LOOKS[0]:  # undecided as another one won: what was measured orders it from now on
                each.expected = max(0.0, gain) * self.ratio
        if winner is not None:
            gain = race.gain(winner)
            self.budget.pay_back()
            self.kept.append((winner.candidate, gain * self.ratio))
            self.found.stack.append(winner.candidate)
            self.ratio *= 1 - gain


def _attempt(race: Race, arm: Arm, stack: tuple[str, ...], kept: bool) -> Attempt:
    measured = bool(arm.trials) and bool(race.trials)
    return Attempt(
        candidate=arm.candidate,
        stack=stack,
        rounds=min(len(arm.trials), race.rounds),
        gain=race.gain(arm) if measured else None,
        ratios=race.interval(arm) if measured else None,
        result="kept" if kept else "dropped" if arm.left else "undecided",
        why=arm.left,
    )

"""Trials of a search as real runs of the script, or as they were kept of an earlier call."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from dptune.prove import judging
from dptune.prove.numerics import learning
from dptune.prove.result import SideName, Trial
from dptune.prove.run_trial import check_unchanged, is_in_vain, run_side
from dptune.prove.task import Task, numerics_of
from dptune.runfile.window import MOST_TAKEN
from dptune.tune.candidate import Candidate
from dptune.tune.journal import Entry, Journal
from dptune.tune.search import InterruptedSearchError
from dptune.tune.timed import Failed, Timed

_AGAIN = 0.5  # trials that are run again because others took the cores: of all that were made
TaskOf = Callable[[Sequence[Candidate]], Task]


class RealRunner:
    """Runs each stack of changes as side B of its task, and the script as it is as side A."""

    def __init__(
        self, task_of: TaskOf, folder: Path, journal: Journal, warn: Callable[[str], None], limit_s: float
    ) -> None:
        self._task_of, self._folder, self._journal = task_of, folder, journal
        self._warn, self._limit_s = warn, limit_s
        self._tasks: dict[tuple[str, ...], Task] = {}
        self._beside = False
        self._ends_early: bool | None = None
        self._again = 0

    def run(self, changes: Sequence[Candidate]) -> Timed | Failed:
        """One trial. Raises InterruptedSearchError where the user ended it, RunError where the code has changed."""
        names = [change.name for change in changes]
        entry = self._journal.next(names)
        if entry is None:
            try:
                entry = self._made(changes, names)
            except KeyboardInterrupt:  # while no script ran
                raise InterruptedSearchError from None
            self._journal.add(entry)
        self._beside = self._beside or entry.trial.beside
        return self._as_seen(changes, entry)

    def altered(self, stack: Sequence[Timed], trials: Sequence[Timed], candidate: Candidate) -> str:
        """What the first losses say, by the rules of `prove.numerics`."""
        sides: tuple[tuple[SideName, Sequence[Timed]], ...] = (("A", stack), ("B", trials))
        both = [
            timed.trial.model_copy(update={"side": side})
            for side, made in sides
            for timed in made
            if timed.trial is not None
        ]
        found = learning(both, numerics_of(candidate.settings))
        return found.reason if found.outcome == "other" else ""

    def _made(self, changes: Sequence[Candidate], names: list[str]) -> Entry:
        task = self._tasks.get(tuple(names)) or self._tasks.setdefault(tuple(names), self._task_of(changes))
        side: SideName = "B" if changes else "A"
        began = time.monotonic()
        made = self._run(task, side)
        if made.status in ("failed", "no steps") and self._may_lack(task):
            self._warn(f"the script failed in a copy of {task.sources[side]}: trying with links to its siblings")
            self._beside = True
            made = self._run(task, side)
        while judging.disturbed(made) and self._again < max(2, _AGAIN * len(self._journal.entries)):
            self._again += 1
            self._warn(f"more than {100 * MOST_TAKEN:g} % of the CPU time was taken by other virtual machines: again")
            made = self._run(task, side)
        if made.status == "interrupted":
            raise InterruptedSearchError
        check_unchanged(task, side)
        return Entry(changes=names, trial=made, seconds=time.monotonic() - began)

    def _run(self, task: Task, side: SideName) -> Trial:
        number = len(self._journal.entries) + 1
        return run_side(task, side, number, self._folder, self._limit_s, self._warn, self._beside)

    def _may_lack(self, task: Task) -> bool:
        """Whether a copy may lack what the script reads: nothing has run in one yet."""
        return not self._beside and task.recorded and not self._journal.entries

    def _as_seen(self, changes: Sequence[Candidate], entry: Entry) -> Timed | Failed:
        made = entry.trial
        step_ns = made.known("step_ns")
        if made.status != "ran" or step_ns is None:
            return Failed(f"{made.status}: {made.note}", entry.seconds, made)
        if changes and is_in_vain(set(changes[-1].settings), made):
            why = "; ".join(f"{name}: {words}" for name, words in made.without_effect.items())
            return Failed(f"did not take effect: {why}", entry.seconds, made)
        if not changes and self._ends_early is None:
            self._ends_early = made.ended_early
        if made.ended_early and not self._ends_early:
            return Failed(made.note, entry.seconds, made)
        samples = made.known("samples_per_step")
        return Timed(step_ns / (samples or 1), entry.seconds, samples is not None, made)

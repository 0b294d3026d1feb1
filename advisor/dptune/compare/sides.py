"""The runs of a comparison: two sides, each one run or several repeats, and what must be true of them."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from statistics import median
from typing import Literal

from dptune.advice import Report
from dptune.compare.result import Basis, Condition, Pair
from dptune.compare.verdict import LEVEL, chance_of
from dptune.errors import RunError
from dptune.finding import Finding
from dptune.knobs import Value
from dptune.measured import Measured, Missing, RankFigures
from dptune.runfile.facts import Facts

_OF_TRACED_STEPS = {"steps-few"}  # findings that say nothing about times without the profiler


@dataclass(frozen=True, eq=False)
class ReadRun:
    """One run of a side: its name, its report, and the facts of its ranks (empty for foreign traces and reports)."""

    name: str
    report: Report
    facts: Mapping[int, Facts]

    @property
    def measured(self) -> Measured:
        """Its figures."""
        return self.report.measured

    def step_ns(self, basis: Basis) -> int:
        """Its untraced step time, of all its processes, or traced; raises Missing where it has none."""
        step = self.measured.step
        if basis == "traced":
            return step.time_ns if step.basis == "traced" else round(self.measured.traced_step_ns)
        return step.time_ns if step.repeats_ns else step.untraced_median_ns

    def fault(self, basis: Basis) -> Finding | None:
        """Why no verdict can rest on it; None where one can. Times without the profiler need no traced steps."""
        found = [finding for finding in self.report.trust.findings if finding.level == "unjudgeable"]
        if basis == "untraced" and {finding.code for finding in found} <= _OF_TRACED_STEPS:
            return None
        return found[0] if found else None

    def rank(self, number: int) -> RankFigures:
        """One of its ranks; raises Missing where it was not read."""
        found = next((rank for rank in self.measured.ranks if rank.rank == number), None)
        if found is None:
            raise Missing(f"rank {number} was not read in {self.name}")
        return found


@dataclass(frozen=True, eq=False)
class Sides:
    """The runs of A and of B."""

    a: Sequence[ReadRun]
    b: Sequence[ReadRun]

    @property
    def runs(self) -> list[tuple[Literal["A", "B"], ReadRun]]:
        """Every run with its side."""
        runs_of_a: list[tuple[Literal["A", "B"], ReadRun]] = [("A", run) for run in self.a]
        return runs_of_a + [("B", run) for run in self.b]

    def pair(self, read: Callable[[ReadRun], float]) -> Pair:
        """A figure as its median over the runs of each side; missing where a run lacks it."""
        (a, no_a), (b, no_b) = _median(self.a, read), _median(self.b, read)
        return Pair.between(a, b, no_a, no_b)

    def check(self) -> None:
        """Raise RunError where what is named as several runs is not."""
        for runs in (self.a, self.b):
            for first, other in combinations(runs, 2):
                _check_whole(first, other)
                if _same(first, other):
                    what = f"{first.name} and {other.name} are the same recording"
                    raise RunError(what, "name each run once per side")
        for first, other in product(self.a, self.b):
            if _same(first, other):
                what = f"{first.name} (A) and {other.name} (B) are the same recording"
                raise RunError(what, "name each run on one side only")

    def conditions(self) -> list[Condition]:
        """What must be the same in all runs, and whether it is."""
        return [self._condition(name, read) for name, read in _CONDITIONS.items()]

    def remarks(self) -> Iterator[str]:
        """What limits what the runs can say together."""
        for side, run in self.runs:
            if run.report.trust.level == "partial":
                first = [f": {finding.text}" for finding in run.report.trust.findings if finding.level == "partial"][:1]
                yield f"{side} ({run.name}) is partial{''.join(first)}"
        if len({tuple(rank.rank for rank in run.measured.ranks) for _, run in self.runs}) > 1:
            yield "different ranks were read in different runs, so their breakdowns are of different ranks"

    @property
    def one_after_the_other(self) -> bool:
        """Whether the order of recording alone separates the sides, by the test of the verdict: not only where all of
        one side came first, but also where a machine that drifts would look like a difference.
        """
        a, b = ([_moment(run) for run in runs] for runs in (self.a, self.b))
        if min(len(a), len(b)) < 2 or not all((*a, *b)):
            return False
        pairs = [(moment, other) for moment, other in product(b, a) if moment is not None and other is not None]
        later, earlier = (
            sum(moment > other for moment, other in each) for each in (pairs, [pair[::-1] for pair in pairs])
        )
        most = max(later, earlier)
        return most == len(pairs) or 2 * chance_of(len(a), len(b), most) <= LEVEL

    def _condition(self, name: str, read: Callable[[ReadRun], Value]) -> Condition:
        found = [(side, run.name, read(run)) for side, run in self.runs]
        return Condition(
            name=name,
            a=list(dict.fromkeys(value for side, _, value in found if side == "A" and value is not None)),
            b=list(dict.fromkeys(value for side, _, value in found if side == "B" and value is not None)),
            unknown=[run for _, run, value in found if value is None],
        )


def _moment(run: ReadRun) -> datetime.datetime | None:
    """When it was recorded; None where that is not known."""
    try:
        return datetime.datetime.fromisoformat(run.report.run.recorded or "").astimezone()
    except (ValueError, OverflowError, OSError):
        return None


def _device_names(run: ReadRun) -> Value:
    names = {str(name) for rank in run.measured.ranks if (name := rank.known("device_name"))}
    return ", ".join(sorted(names)) or None


_CONDITIONS: dict[str, Callable[[ReadRun], Value]] = {
    "device kind": lambda run: run.measured.known("device_kind"),
    "device": _device_names,
    "world size": lambda run: run.measured.known("world_size"),
    "torch": lambda run: run.report.run.torch,
    "samples per step": lambda run: run.measured.known("samples_per_step"),
}


def _median(runs: Sequence[ReadRun], read: Callable[[ReadRun], float]) -> tuple[float | None, str]:
    values = []
    for run in runs:
        try:
            values.append(read(run))
        except Missing as missing:
            return None, missing.reason
    return median(values), ""


def _check_whole(first: ReadRun, other: ReadRun) -> None:
    """Two repeats are two recordings, not two ranks of one, which would count as two."""
    mine, theirs = first.measured, other.measured
    ranks = [{rank.rank for rank in run.ranks} for run in (mine, theirs)]
    worlds = {run.known("world_size") for run in (mine, theirs)}
    alone = len(ranks[0]) == len(ranks[1]) == 1 and ranks[0] != ranks[1]
    if alone and not (first.facts or other.facts) and worlds != {1}:
        raise RunError(
            f"{first.name} and {other.name} are rank {ranks[0].pop()} and rank {ranks[1].pop()}: "
            "ranks of one run are not separate runs",
            "name the folder that holds all traces of a run, or the same rank of each",
        )


def _same(first: ReadRun, other: ReadRun) -> bool:
    """Whether two are one recording: its steps took the same time to the nanosecond, and were spent on the same."""
    mine, theirs = first.measured, other.measured
    timed = mine.step.known("time_ns") is not None
    steps = [measured.step.model_copy(update={"repeats_ns": [], "time_ns": None}) for measured in (mine, theirs)]
    return timed and steps[0] == steps[1] and mine.known("account") == theirs.known("account")

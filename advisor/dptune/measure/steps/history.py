"""Every timed step of a run in order: how long it took, and whether it is an outlier."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from dptune.measure.steps.outliers import outliers
from dptune.measure.steps.times import durations, median
from dptune.measured import Measured
from dptune.runfile.facts import Facts
from dptune.trace.run import Run

WindowName = Literal["untraced", "light", "detailed"]
WINDOWS: tuple[WindowName, ...] = ("untraced", "light", "detailed")


@dataclass(frozen=True)
class TimedStep:
    """One step: its number, the median over ranks of its length, and the rank on which it took longest, None where
    that is not known.

    `outlier`: on some rank it took much longer than the others of its window.
    """

    number: int
    length_ns: int
    longest_ns: int
    rank: int | None
    outlier: bool


@dataclass(frozen=True)
class WindowHistory:
    """The steps of one window, by number; of traces that dptune did not record all steps are in the light window."""

    window: WindowName
    steps: list[TimedStep]


def step_history(run: Run, measured: Measured, rank: int | None = None) -> list[WindowHistory]:
    """The windows with timed steps, in the order of their steps; with `rank`, of that rank alone."""
    facts = {number: of for number, of in run.facts.items() if rank in (None, number)}
    found = [WindowHistory(name, _timed(_recorded(facts, name))) for name in WINDOWS]
    if not any(window.steps for window in found):
        found = [WindowHistory("light", _traced(measured, rank))]
    return sorted((window for window in found if window.steps), key=lambda window: window.steps[0].number)


def _recorded(facts: Mapping[int, Facts], name: WindowName) -> dict[int, dict[int, int]]:
    """By rank and number the length of each step that was timed in a window."""
    found = {}
    for rank, rank_facts in facts.items():
        window = rank_facts.window(name)
        if window is not None:
            found[rank] = dict(enumerate(durations(window), window.first_step))
    return found


def _traced(measured: Measured, only: int | None) -> list[TimedStep]:
    """The steps that figures are of, and those that were set aside because they took much longer: of one rank, only
    those of which its time is known.
    """
    by_rank: dict[int, dict[int, int]] = {}
    for rank in measured.ranks:
        stepped = [device.steps for device in rank.devices if device.steps]
        if stepped and only in (None, rank.rank):
            by_rank[rank.rank] = {step.number: step.account.window_ns for step in max(stepped, key=len)}
    steps = measured.known("steps")
    aside = [
        TimedStep(step.number, step.length_ns, step.length_ns, step.rank, True)
        for step in (steps.set_aside if steps is not None and by_rank else ())
        if only in (None, step.rank)
    ]
    return sorted([*_timed(by_rank), *aside], key=lambda step: step.number)


def _timed(by_rank: Mapping[int, Mapping[int, int]]) -> list[TimedStep]:
    over_ranks: dict[int, dict[int, int]] = defaultdict(dict)
    for rank, lengths in by_rank.items():
        for number, length_ns in lengths.items():
            over_ranks[number][rank] = length_ns
    long = set(_long(by_rank.values()))
    found = []
    for number, lengths in sorted(over_ranks.items()):
        rank = max(lengths, key=lambda rank: lengths[rank])
        found.append(TimedStep(number, median(lengths.values()) or 0, lengths[rank], rank, number in long))
    return found


def _long(ranks: Iterable[Mapping[int, int]]) -> Iterable[int]:
    for lengths in ranks:
        numbers = list(lengths)
        yield from (numbers[at] for at in outliers(list(lengths.values())))

"""A pair: a run before and after a change, simulated with the same noise, written as traces, and the truth beside it.

FOLDER/before/rank-00000.pt.trace.json.gz ...
FOLDER/after/rank-00000.pt.trace.json.gz ...
FOLDER/truth.json
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from tests.simulator import kineto, machine, settings, training
from tests.simulator.account import Account, account, step_windows
from tests.simulator.changes import CHANGES, Change, Run
from tests.simulator.engine import Simulation
from tests.simulator.machine import Draw
from tests.simulator.timeline import Timeline

WARMUP = 4  # steps before the recording: the launch queue fills
STEPS = 6  # recorded
ALIKE = 3  # enough of them without noise


@dataclass(frozen=True)
class Pair:
    """A drawn run and a change of it."""

    seed: int
    change: Change
    value: str
    before: Run
    after: Run


def drawn(seed: int, ranks: int, changed: str) -> Pair:
    """The pair of a seed; `changed` is NAME or NAME=VALUE: without a value one is drawn."""
    name, _, value = changed.partition("=")
    if name not in CHANGES:
        raise KeyError(f"no such change: {name}; there are {', '.join(CHANGES)}")
    change = CHANGES[name]
    draw = Draw(random.Random(f"pair {seed} {name}"))
    before = machine.drawn(seed, ranks), change.prepare(draw, settings.drawn(seed, ranks))
    value = value or change.values(draw, before)
    return Pair(seed, change, value, before, change.apply(before, value))


def simulated(run: Run, traced: bool, steps: int = STEPS) -> list[Timeline]:
    """Warm-up, the steps, and one more, whose start ends the last of them."""
    return Simulation(run[0], training.scripts(*run), WARMUP + steps + 1, traced).run()


def accounts(timeline: Timeline, steps: int = STEPS) -> list[Account]:
    """Of each recorded step of a rank."""
    return [account(timeline, window) for window in step_windows(timeline, WARMUP, steps)]


def mean_step_ns(timelines: list[Timeline], steps: int = STEPS) -> int:
    """Over ranks and steps: what is predicted."""
    return round(mean(step.window_ns for timeline in timelines for step in accounts(timeline, steps)))


def truth(run: Run, traced: list[Timeline], untraced: list[Timeline]) -> dict[str, Any]:
    """Steps and accounts of each rank, and what was simulated."""
    found = [accounts(timeline) for timeline in traced]
    return {
        "step_ns": mean_step_ns(traced),
        "untraced_step_ns": mean_step_ns(untraced),
        "steps_ns": [[step.window_ns for step in rank] for rank in found],
        "untraced_steps_ns": [[step.window_ns for step in accounts(timeline)] for timeline in untraced],
        "accounts": [[asdict(step) for step in rank] for rank in found],
        "machine": asdict(run[0]),
        "settings": asdict(run[1]),
    }


def write_traces(run: Run, timelines: list[Timeline], folder: Path, steps: int = STEPS) -> None:
    """The recorded steps of all ranks."""
    folder.mkdir(parents=True, exist_ok=True)
    for timeline in timelines:
        kineto.write(timeline, run[0], run[1].ranks, WARMUP, steps, folder)


def write(pair: Pair, folder: Path) -> dict[str, Any]:
    """Simulate both sides and write them; returns what is in truth.json."""
    found: dict[str, Any] = {"seed": pair.seed, "change": pair.change.name, "value": pair.value}
    for side, run in (("before", pair.before), ("after", pair.after)):
        traced = simulated(run, traced=True)
        found[side] = truth(run, traced, simulated(run, traced=False))
        write_traces(run, traced, folder / side)
    (folder / "truth.json").write_text(json.dumps(found) + "\n")
    return found

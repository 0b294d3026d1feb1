"""Learning-rate schedulers: after how many steps they end, how far they are, and what steps them."""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from dptune.capture.injected.observe.call_source import lines_of
from dptune.capture.injected.observe.places import Places
from dptune.capture.injected.observe.planned_epochs import planned_epochs
from dptune.runfile.schedules import SchedulerFacts

_LENGTHS = {"OneCycleLR": "total_steps", "CosineAnnealingLR": "T_max", "LinearLR": "total_iters"} | {
    "PolynomialLR": "total_iters"
}
_DECAYED = 0.01  # of its first value: a rate of which trains next to nothing
_LOW = 0.1  # of its first value: schedules that end a training end there or lower (the page of DP303 names sources)
_LEAST = 10  # steps: below, a number in a function is hardly the length of a schedule


def schedulers(places: Places, before: Sequence[SchedulerFacts], steps: int) -> list[SchedulerFacts]:
    """Of all that are alive, after so many optimizer steps, with what was counted `before`."""
    alive = places.alive(LRScheduler)
    known: list[SchedulerFacts | None] = list(before) if len(before) == len(alive) else [None] * len(alive)
    members = {id(part) for scheduler in alive for part in getattr(scheduler, "_schedulers", ())}
    planned = None
    with contextlib.suppress(Exception):  # a script may hold anything
        planned = planned_epochs(sys._getframe(1))
    found = []
    for scheduler, last in zip(alive, known, strict=True):
        facts = SchedulerFacts(type(scheduler).__name__, places.line(scheduler), _base(scheduler))
        if last is not None and (last.name, last.where) == (facts.name, facts.where):
            facts.advanced, facts.optimizer_steps = list(last.advanced), list(last.optimizer_steps)
            facts.epochs, facts.stepped_at = last.epochs, last.stepped_at
        facts.epochs = planned or facts.epochs
        facts.stepped_at = places.stepped_at(scheduler) or facts.stepped_at
        facts.argument_lines = lines_of(places, scheduler)
        with contextlib.suppress(Exception):  # a scheduler may be of any kind
            facts.length = _length(scheduler)
            facts.decayed_after = None if id(scheduler) in members else _decayed_after(scheduler)
            facts.advanced.append(int(scheduler.last_epoch))
            facts.optimizer_steps.append(steps)
        with contextlib.suppress(Exception):
            _note_lightning(facts, scheduler, places)
        found.append(facts)
    return found


def _base(scheduler: Any) -> float | None:
    rates = getattr(scheduler, "base_lrs", None)
    return float(rates[0]) if rates else None


def _length(scheduler: Any) -> int | None:
    if isinstance(scheduler, lr_scheduler.SequentialLR):
        last = _length(scheduler._schedulers[-1])
        return None if last is None else scheduler._milestones[-1] + last
    if isinstance(scheduler, lr_scheduler.LambdaLR):
        numbers = [number for function in scheduler.lr_lambdas for number in _numbers(function)]
        return max((number for number in numbers if number >= _LEAST), default=None)
    length = getattr(scheduler, _LENGTHS.get(type(scheduler).__name__, ""), None)
    return length if isinstance(length, int) else None


def _decayed_after(scheduler: Any) -> int | None:
    """Of schedules that lower the rate to _LOW or less; None for all others. Torch takes fractions of steps."""
    if isinstance(scheduler, lr_scheduler.LinearLR):
        lowers = scheduler.end_factor <= _LOW * scheduler.start_factor
        return math.ceil(scheduler.total_iters) if lowers else None
    if isinstance(scheduler, lr_scheduler.PolynomialLR):
        return math.ceil(scheduler.total_iters)
    if not 0 < getattr(scheduler, "gamma", 0) < 1:
        return None
    if isinstance(scheduler, lr_scheduler.MultiStepLR):
        lowers = scheduler.gamma ** sum(scheduler.milestones.values()) <= _LOW
        return math.ceil(max(scheduler.milestones)) if lowers else None
    if isinstance(scheduler, lr_scheduler.StepLR | lr_scheduler.ExponentialLR):
        times = math.ceil(round(math.log(_DECAYED) / math.log(scheduler.gamma), 6))
        return times * int(getattr(scheduler, "step_size", 1))
    return None


def _numbers(function: Callable[..., Any]) -> Iterator[int]:
    """Whole numbers that a function is bound to: `num_training_steps` of transformers, or a variable around it."""
    values: list[Any] = []
    if isinstance(function, functools.partial):
        values += [*function.args, *function.keywords.values()]
    else:
        values += [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
        values += getattr(function, "__defaults__", None) or ()
    yield from (value for value in values if type(value) is int)


def _note_lightning(facts: SchedulerFacts, scheduler: Any, places: Places) -> None:
    for trainer in places.alive("Trainer"):
        for config in getattr(trainer, "lr_scheduler_configs", ()):
            if config.scheduler is not scheduler:
                continue
            facts.interval, facts.frequency = str(config.interval), int(config.frequency)
            batches, epochs = trainer.num_training_batches, trainer.max_epochs
            if isinstance(batches, int) and isinstance(epochs, int) and epochs > 0:
                steps = math.ceil(batches / trainer.accumulate_grad_batches) * epochs
                facts.epochs = epochs
                facts.training_steps = steps if trainer.max_steps in (-1, None) else min(steps, trainer.max_steps)

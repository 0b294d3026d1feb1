"""The learning rate that goes with a larger batch, by the scaling rule of its optimizer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dptune.advice import Change, Location
from dptune.knobs import SETS_RATE, listed_betas, scaled_with_batch
from dptune.rule import RunView

LEAST_BETA = 0.5  # beta1 of Adam: below, the first moment keeps little of earlier gradients


def leaves_rule(run: RunView, times: int) -> bool:
    """Whether the scaling rule of Adam would set beta1 below `LEAST_BETA`."""
    return any(
        optimizer.name in ("Adam", "AdamW") and optimizer.betas and 1 - times * (1 - optimizer.betas[0]) < LEAST_BETA
        for optimizer in run.any_facts().optimizers
    )


@dataclass(frozen=True)
class Rate:
    """What becomes of the learning rate."""

    changes: list[Change]
    watch: str


def scaled_rate(run: RunView, times: int) -> Rate:
    """The changes, for an optimizer with a rule whose rate nothing else sets, and what to watch."""
    optimizers = run.any_facts().optimizers
    first = optimizers[0] if len(optimizers) == 1 else None
    now = None if first is None else _rate(first.first_learning_rate, first.learning_rates, first.default_learning_rate)
    if first is None or not now or _is_set_otherwise(run, now, first.default_learning_rate):
        names = {optimizer.name for optimizer in optimizers}
        larger = f"The global batch is {times}x as large. Scale the learning rate ({_in_words(names, times)})"
        return Rate([], f"{larger} in the scheduler or parameter group that sets it.")
    fewer = f"Step-based schedules get {times}x fewer steps."
    where = Location.parse(first.where)
    before = {"optimizer.lr": now, "optimizer.betas": listed_betas(first.betas), "optimizer.eps": first.eps}
    settings = scaled_with_batch(first.name, times, now, first.betas, first.eps)
    changes = [Change(knob=name, now=before[name], then=then, at=where) for name, then in settings.items()]
    if first.name == "SGD":
        return Rate(changes, f"For SGD, scale the learning rate linearly with the batch, after a warm-up. {fewer}")
    if first.name not in ("Adam", "AdamW"):
        return Rate([], f"There is no known scaling rule for {first.name}: retune the learning rate. {fewer}")
    if not changes:
        words = f"The scaling rule for {first.name} does not hold at {times}x the batch: betas would be below 0"
        return Rate([], f"{words}. Retune the learning rate. {fewer}")
    words = f"For {first.name}, scale the learning rate with the square root of the batch"
    if len(changes) > 1:
        words += ", and adjust betas and eps"
    return Rate(changes, f"{words}. {fewer}")


def _is_set_otherwise(run: RunView, now: float, made_with: float | None) -> bool:
    """Whether a scheduler sets the rate, or the first group has another than the optimizer was made with."""
    if made_with and not math.isclose(now, made_with, rel_tol=1e-3):
        return True
    return any(scheduler.name in SETS_RATE for scheduler in run.any_facts().schedulers)


def _in_words(names: set[str], times: int) -> str:
    """By which factor, of each optimizer."""
    factors = []
    for name in sorted(names):
        if name == "SGD":
            factors.append(f"{times} times for SGD")
        elif name in ("Adam", "AdamW"):
            factors.append(f"{math.sqrt(times):.3g} times for {name}, with its betas and eps")
        else:
            factors.append(f"no rule is known for {name}")
    return ", ".join(factors) or "by the rule of its optimizer"


def _rate(scheduled: float | None, present: Sequence[float], default: float | None) -> float | None:
    """What the script was started with: as a scheduler noted it, or what it still is; None where a loop sets it."""
    return scheduled or (default if present and default and math.isclose(present[0], default) else None)

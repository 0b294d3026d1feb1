"""The training process waits for its data loader.

## What it measures

The time that the training thread spends inside the DataLoader's `__next__`, as a share of the step: from steps without
the profiler where dptune recorded the run. The median over ranks grades the advice. The number of workers and the
saving go by the rank that waits most, because the others wait for it in the next all-reduce.

## Why it costs time

With `num_workers=0` the training process prepares every batch itself, and the device waits meanwhile. With workers it
waits when they deliver more slowly than steps consume.

With no worker, preparing takes the wait w of a step and the rest takes 1 - w, so that w / (1 - w) workers keep up.
Where n workers leave a wait of w, n / (1 - w) would keep up.

## What to change

`num_workers` of the DataLoader: as many workers as that takes and one to spare, within the cores that this rank may
use (usable cores / ranks on the host). `persistent_workers=True` keeps them from starting anew each epoch.

Where no core is free, make a batch cheaper: decode and resize once and store the result, transform whole batches, or
move transforms to the device.

The step saves at most that wait, and no more than the workers proposed can take off it. Measured with two gloo ranks on
two cores, one worker instead of none: a wait of 41 % of a step, 27 to 42 % saved over 5 pairs.

## When to leave it alone

- The first batches of an epoch wait, the others do not: that is the start of the workers.
- On a GPU, where the device still has work queued while the script waits: the wait is then hidden.
- The storage is the limit: more workers then wait together. Watch its rate first.
- Random augmentation: workers draw from their own seeds, so a run is not bit for bit the same as before.

## References

- torch.utils.data, "Single- and Multi-process Data Loading": https://pytorch.org/docs/stable/data.html
- PyTorch performance tuning guide, on asynchronous data loading and augmentation:
  https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html
- Measured with two gloo ranks on two cores: 2 workers instead of 0 ran 1.42 times as fast.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

from dptune.advice import Advice, Change, Evidence, Location
from dptune.rule import Rule, RunView, Threshold

MOST_WORKERS = 16  # where the cores are not known

WARNING_SHARE = Threshold("warning_share", 0.05, "what a warning is: a step pays 5 % for waiting")
ERROR_SHARE = Threshold("error_share", 0.20, "above the 15 % of other errors: a wait on the host may be hidden in part")

RULE = Rule(
    code="DP501",
    name="loader-starves-step",
    family="feeding",
    kind="time",
    summary="the training process waits for its data loader",
    since="0.1",
    thresholds=(WARNING_SHARE, ERROR_SHARE),
)


def check(run: RunView) -> Iterator[Advice]:
    """Propose workers, or a cheaper batch where no core is left for them."""
    if run.facts and not any(facts.loaders or "loaders" in facts.unread for facts in run.facts):
        return  # the script has no DataLoader
    wait = run.measured.input.wait_share
    if wait < run.limit(WARNING_SHARE):
        return
    loaders = run.facts[0].loaders if run.facts else []
    loader = max(loaders, key=lambda one: one.dataset_samples or 0, default=None)  # not the one for validation
    now = loader.num_workers if loader else None
    cores = _cores_of_a_rank(run)
    longest = max([wait, *(rank.known("loader_wait_share") or 0.0 for rank in run.measured.ranks)])
    then = None if now is None else _workers(now, longest, cores)
    where = Location.parse(loader.where) if loader else None
    if now is None:
        remedy = "give the DataLoader more workers, or make a batch cheaper to prepare"
    elif then is None:
        remedy = f"no core is left for more than its {now} workers, so make a batch cheaper to prepare"
    else:
        remedy = f"give it {then} workers instead of {now}" if now else f"it has no workers, give it {then}"
    high = longest if then is None else min(longest, 1 - (now or longest) / then)
    yield Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        severity="error" if wait >= run.limit(ERROR_SHARE) else "warning",
        title=f"A step waits {100 * wait:.0f} % of its time for the data loader: {remedy}",
        why=_why(now, run.measured.known("device_kind")),
        changes=[] if then is None else [Change(knob="loader.num_workers", now=now, then=then, at=where)],
        saves=run.bound(0.0, high, "no more than the wait, and no more than this many workers can take off it"),
        confidence=_confidence(run, now),
        evidence=list(_evidence(run, wait, now, cores, str(where or ""))),
        numerics="same",
        watch="Random augmentation in workers draws other numbers than in the training process.",
        fingerprint=f"{RULE.code}:loader.num_workers:{(loader and loader.dataset) or 'loader'}",
    )


def _cores_of_a_rank(run: RunView) -> int | None:
    """Usable cores of the host / ranks on it, at least 1; None where the cores are not known."""
    if not run.facts or run.facts[0].device is None or not run.facts[0].device.usable_cores:
        return None
    first = run.facts[0]
    ranks = sum(facts.host == first.host for facts in run.facts)
    ranks = max(ranks, *(1 + (facts.local_rank or 0) for facts in run.facts if facts.host == first.host))
    return max(1, run.facts[0].device.usable_cores // ranks)


def _workers(now: int, wait: float, cores: int | None) -> int | None:
    """How many workers keep up, and one to spare, within the cores; None where that is not more than now."""
    most = MOST_WORKERS if cores is None else cores
    keep_up = (now or wait) / max(1 - wait, 1e-9)
    then = min(math.ceil(keep_up) + 1, most)
    return then if then > now else None


def _why(now: int | None, device: str | None) -> str:
    if now:
        return "The workers deliver batches more slowly than steps consume them."
    idle = "" if device == "cpu" else " and the device waits"
    if now == 0:
        return f"With num_workers=0 the training process prepares every batch itself{idle}, instead of beside the step."
    return (
        "Batches come more slowly than steps consume them; record with `dptune profile` to learn how they are loaded."
    )


def _confidence(run: RunView, now: int | None) -> Literal["low", "medium", "high"]:
    if now is None:
        return "low"
    # where the model computes on the CPU, workers take cores from it
    sure = run.measured.input.basis == "unprofiled" and run.measured.known("device_kind") != "cpu"
    return "high" if sure else "medium"


def _evidence(run: RunView, wait: float, now: int | None, cores: int | None, where: str) -> Iterator[Evidence]:
    yield Evidence(label="waiting for the loader", value=wait, unit=f"of a step ({run.measured.input.basis})")
    waits = {rank.rank: rank.known("loader_wait_share") for rank in run.measured.ranks}
    slowest = max(waits, key=lambda rank: waits[rank] or 0.0, default=None)
    if slowest is not None and len(waits) > 1 and waits[slowest] is not None:
        yield Evidence(label="on the rank that waits most", value=waits[slowest], unit="of a step", rank=slowest)
    if now is not None:
        yield Evidence(label="workers", value=now, unit="processes")
    if cores is not None:
        yield Evidence(label="cores that this rank may use", value=cores)
    if where:
        yield Evidence(label="the loader is made at", value=where)

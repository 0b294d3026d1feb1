"""Changes of how batches come, and of how large they are."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from dptune.knobs import Value
from dptune.measured import Missing
from dptune.whatif.cpu.model import Loading, Pass, RankStep, StepModel
from dptune.whatif.cpu.replay import step_ns

# Beyond what these allow, what was recorded says little: caches, memory and a core's turns decide.
_MOST_BATCHES, _WORKERS_A_CORE, _FEW_WORKERS = 64, 8, 16
# To start one, and to end it (four of them in epochs of eight batches: 110 to 140 ms more for each epoch; torch 2.13,
# Linux, fork).
WORKER_STARTS_NS = 30e6
# To take a batch that a worker has ready (one tensor, torch 2.13, Linux: 1.2 to 1.6 ms, 1 of it computing).
TAKING_NS = 1.4e6
_ROUNDING = 1e-9


def workers(model: StepModel, value: Value) -> StepModel:
    """As many batches at once as there are workers; each computes on a core, as far as there are cores.

    An epoch begins with none prepared, and with workers to start, unless they are kept.
    """
    loading, workers = loading_of(model), int(value or 0)
    if workers == loading.workers:
        return model
    if loading.prepare_ns is None:
        raise Missing("workers already prepare batches, so the time per batch is unknown")
    if workers > max(_FEW_WORKERS, _WORKERS_A_CORE * loading.cores_per_rank):
        raise Missing(f"the model covers up to {_WORKERS_A_CORE} workers per core of the rank, or {_FEW_WORKERS}")
    if not workers:
        raise Missing("the loader has no workers")
    supply = dict.fromkeys(model.steps, loading.prepare_ns / workers)
    without = replace(model, supply_ns=supply, loading=replace(loading, workers=workers))
    passes = max(len(step.passes) for steps in model.steps.values() for step in steps)
    step = step_ns(replace(without, supply_ns=dict.fromkeys(model.steps, 0.0)))
    wanted = 1 + loading.computing * min(workers, passes * loading.prepare_ns / step)
    recorded = max(1.0, 1 / loading.cores_per_rank)  # how crowded the cores are already
    crowding = max(1.0, wanted / loading.cores_per_rank) / recorded
    slower = without.computing(crowding)
    starts = 0.0 if loading.persistent or not loading.epoch else workers * WORKER_STARTS_NS / loading.epoch
    longer = 1 + loading.computing * (crowding - 1)  # the rest of preparing waits, and needs no core
    first = loading.prepare_ns * longer / loading.epoch if loading.epoch else 0.0
    every = {
        rank: supply_ns * longer + starts for rank, supply_ns in supply.items()
    }  # nothing is prepared while they start
    return replace(slower, supply_ns=every, restart_ns=first + starts + TAKING_NS)


def persistent(model: StepModel, value: Value) -> StepModel:
    """Of workers that come with it: it spares their start."""
    loading = loading_of(model)
    if loading.workers and bool(value) != loading.persistent:
        raise Missing("worker start-up time per epoch is unknown: it is not recorded as waiting for the data loader")
    return replace(model, loading=replace(loading, persistent=bool(value)))


def batch(model: StepModel, value: Value) -> StepModel:
    """Forward, backward and the preparing of batches grow with the batch, but for a fixed share; the rest does not."""
    loading = loading_of(model)
    if loading.batch is None:
        raise Missing("ranks take batches of different sizes")
    times = int(value or 0) / loading.batch
    if not times:
        raise Missing("a batch has at least one sample")
    if loading.epoch is not None and times > loading.epoch:
        raise Missing(f"batch size exceeds the {loading.epoch * loading.batch} samples a rank sees per epoch")
    if times > _MOST_BATCHES:
        raise Missing(
            f"the model covers batches of up to {_MOST_BATCHES * loading.batch} samples, {_MOST_BATCHES} times the "
            f"present one"
        )
    grown = model.fixed_share + (1 - model.fixed_share) * times
    prepare = None if loading.prepare_ns is None else loading.prepare_ns * times
    return replace(
        model,
        steps=model.each_pass(lambda pass_: pass_.scaled(grown, times)),
        loading=replace(loading, batch=int(value or 0), prepare_ns=prepare, epoch=shorter(loading.epoch, times)),
        supply_ns={rank: every * times for rank, every in model.supply_ns.items()},
        samples=None if model.samples is None else model.samples * times,
    )


def micro_batches(model: StepModel, value: Value) -> StepModel:
    """Fewer passes per step: the first and the last stay, and of those between them an even selection.

    What a step does once stays: the optimizer, what precedes its first pass, and the collective of the last.
    """
    before, after = {len(step.passes) for steps in model.steps.values() for step in steps}, int(value or 0)
    if len(before) > 1:
        raise Missing("steps have different numbers of micro-batches")
    if not 0 < after <= max(before):
        raise Missing(f"a step has {max(before)} micro-batches: the model predicts fewer of them, not more")
    steps = {
        rank: [RankStep(_fewer(step.passes, after), step.after_ns) for step in rank_steps]
        for rank, rank_steps in model.steps.items()
    }
    samples = None if model.samples is None else model.samples * after / max(before)
    return replace(model, steps=steps, samples=samples)


def _fewer(passes: tuple[Pass, ...], count: int) -> tuple[Pass, ...]:
    first, last = passes[0], passes[-1]
    if count == 1:
        calls = tuple(
            call
            for pass_, direction in ((first, "forward"), (last, "backward"))
            for call in pass_.calls
            if call.direction == direction
        )
        begins = {name: getattr(first, name) for name in ("loader_ns", "forward_ns", "sent_ns")}
        return (replace(last, **begins, calls=calls),)
    between = passes[1:-1]
    return (first, *(between[at * len(between) // (count - 2)] for at in range(count - 2)), last)


def shorter(epoch: int | None, times: float) -> int | None:
    """The batches of an epoch in which a batch, or all ranks together, take so many times the samples."""
    return None if epoch is None else max(1, ceil(epoch / times - _ROUNDING))


def loading_of(model: StepModel) -> Loading:
    """How batches come; raises Missing where that was not recorded."""
    if model.loading is None:
        raise Missing("the script uses no recorded DataLoader, or several")
    return model.loading

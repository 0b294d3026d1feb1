"""Changes of knobs, as changes of a step model. What a model cannot tell raises Missing.

Of some knobs a model tells only what they could save at most: the part of the step that they are about takes no time
then. They stand in BOUNDS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from math import ceil, isfinite
from statistics import median

from dptune.knobs import Value
from dptune.measured import Missing
from dptune.whatif.buckets import DEFAULT_CAP_BYTES, MIB, Caps
from dptune.whatif.model import Loading, Pass, RankStep, StepModel
from dptune.whatif.replay import step_ns
from dptune.whatif.topology import TOPOLOGY, ranks_asked, relinked

Changing = Callable[[StepModel, Value], StepModel]


def changed(model: StepModel, settings: Mapping[str, Value]) -> StepModel:
    """The model after all changes together, at its best where one is bounded. Raises Missing for any other knob.

    The topology is made of the ranks and of the link that there are then: without the straggler, with another link.
    """
    for name in _BEFORE_TOPOLOGY:
        if name in settings:
            model = CHANGES[name](model, settings[name])
    if not settings.keys().isdisjoint(TOPOLOGY):
        model = _topology(model, settings)
    if settings.get(_PERSISTENT) and not settings.get(_WORKERS) and not _loading(model).workers:
        raise Missing("workers that are not there cannot be kept")
    if settings.get(_PREFETCH) and model.loading and not settings.get(_WORKERS, model.loading.workers):
        raise Missing("workers that are not there prepare nothing ahead")
    only = bounded(settings)
    if {_CAP, _CAPS} <= settings.keys():
        raise Missing("sizes of buckets are given twice: one for all, and one for each")
    for name in sorted(settings.keys() - set(TOPOLOGY) - set(only) - CHANGES.keys()):
        if name in BOUNDS:
            raise Missing(f"the model tells only what another {name} could save at most")
        which = "no step model" if name not in _OF_GPUS else "only the model of steps that GPUs compute"
        raise Missing(f"{which} tells what {name} does")
    for name, change in CHANGES.items():
        if name in settings and name not in only and name not in _BEFORE_TOPOLOGY:
            model = change(model, settings[name])
    for name, bound in BOUNDS.items():
        if name in only:
            model = bound(model)
    return model


def bounded(settings: Mapping[str, Value]) -> list[str]:
    """Those of the changes of which a model tells only what they could save at most."""
    return [name for name, value in settings.items() if name in BOUNDS and _is_bounded(name, value)]


def _is_bounded(name: str, value: Value) -> bool:
    """Of a knob in BOUNDS: whether the value is one that could save something."""
    return is_off(value) == (name in _SAVES_WHEN_OFF)


def is_off(value: Value) -> bool:
    """Whether a setting is off: it leaves things as torch has them."""
    return value is False or value in ("off", "highest")


def _bucket_cap(model: StepModel, value: Value) -> StepModel:
    return replace(model, caps=Caps.of(None if value is None else float(value)))


def _bucket_caps(model: StepModel, value: Value) -> StepModel:
    return replace(model, caps=Caps.of(each_mb=[float(one) for one in str(value).split(",")]))


def _first_bucket(model: StepModel, value: Value) -> StepModel:
    *first, rest = model.caps.bytes
    if len(first) != 1 or rest != DEFAULT_CAP_BYTES:
        raise Missing("a size is given for all buckets, so that the first has none of its own")
    return replace(model, caps=Caps.of(first_bytes=int(float(value or 0) * MIB)))


def _no_sync(model: StepModel, value: Value) -> StepModel:
    """All passes but the last exchange nothing; or each as the last one does."""
    quiet = model.quiet_times

    def of(step: RankStep) -> RankStep:
        *before, last = step.passes
        if not last.ready_ns:
            raise Missing("the last backward pass of a step exchanges nothing")
        if value:
            silent = (one.silent().scaled(quiet if one.ready_ns else 1.0) for one in before)
            return replace(step, passes=(*silent, last))
        told = (one if one.ready_ns else one.scaled(1 / quiet).exchanging_as(last) for one in before)
        return replace(step, passes=(*told, last))

    steps = {rank: [of(step) for step in steps] for rank, steps in model.steps.items()}
    return _sending(model, steps) if model.buffers_ns else replace(model, steps=steps)


def _sends(step: RankStep) -> list[bool]:
    """Of each pass whether buffers are sent before it."""
    return [bool(one.ready_ns) for one in (step.passes[-1], *step.passes[:-1])]


def _sending(model: StepModel, steps: dict[int, list[RankStep]]) -> StepModel:
    """Buffers are sent before each forward pass that follows a pass that exchanges its gradients, and before no other.

    The first pass of a step follows the last one of the step before.
    """

    def of(rank: int, before: RankStep, after: RankStep) -> RankStep:
        ns = model.buffers_ns.get(rank, 0.0)
        more = [(now - was) * ns for was, now in zip(_sends(before), _sends(after), strict=True)]
        passes = [
            replace(one, forward_ns=max(0.0, one.forward_ns + ns)) for one, ns in zip(after.passes, more, strict=True)
        ]
        return replace(after, passes=tuple(passes))

    moved = {rank: [*map(of, repeat(rank), model.steps[rank], own)] for rank, own in steps.items()}
    was, now = (sum(_sends(next(iter(one.values()))[0])) for one in (model.steps, steps))
    others_ns = {rank: ns * now / was for rank, ns in model.others_ns.items()}
    return replace(model, steps=moved, others=round(model.others * now / was), others_ns=others_ns)


def _comm_hook(model: StepModel, value: Value) -> StepModel:
    """Half of the bytes, a cast each way, which reads and writes as a copy back does, and Python for each bucket.

    The backend adds 16-bit floats on a core, and those of fp16 one by one.
    """
    if value == "none":
        return model
    if value == _POWERSGD:
        return _power_sgd(model)
    cast, adding = model.copy_ns_per_byte, ADDING_NS.get(str(value), 0.0) / _FLOAT_BYTES
    if not cast:
        raise Missing("gradients are views of the buckets, so what copying and casting them takes is not seen")
    if model.dtype not in (_HALVED, None):
        raise Missing(f"gradients are of {model.dtype}: the hook is told of for those of {_HALVED}")
    return replace(
        model,
        wire_share=0.5 + (adding * model.link.bytes_per_ns if isfinite(model.link.bytes_per_ns) else 0.0),
        prepare_ns_per_byte=cast,
        hook_ns=HOOK_NS,
        copy_ns_per_byte=model.copy_ns_per_byte + cast,
    )


def _power_sgd(model: StepModel) -> StepModel:
    """Three exchanges of little in place of all buckets, once every gradient is there, and compressing before them."""
    total = sum(model.gradient_bytes)
    if model.low_rank is None:
        raise Missing("the shapes of gradients are not known: record the run again")
    if model.dtype not in (_HALVED, None):
        raise Missing(f"gradients are of {model.dtype}: the hook is told of for those of {_HALVED}")
    compressing = MATRIX_NS * model.low_rank.matrices + COMPRESSED_NS * total
    return replace(
        model,
        caps=Caps((total + 1,)),
        link=replace(model.link, alpha_ns=3 * model.link.alpha_ns),
        wire_share=model.low_rank.sent_bytes / total,
        prepare_ns_per_byte=model.hook_times * compressing / total,
    )


def _workers(model: StepModel, value: Value) -> StepModel:
    """As many batches at once as there are workers; each computes on a core, as far as there are cores.

    An epoch begins with none prepared, and with workers to start, unless they are kept.
    """
    loading, workers = _loading(model), int(value or 0)
    if workers == loading.workers:
        return model
    if loading.prepare_ns is None:
        raise Missing("workers prepare batches already, so how long one takes is not seen")
    if workers > max(_FEW_WORKERS, _WORKERS_A_CORE * loading.cores_per_rank):
        raise Missing(
            f"the model tells of {_WORKERS_A_CORE} workers to a core that the rank may use, or {_FEW_WORKERS}"
        )
    if not workers:
        raise Missing("the loader has no workers")
    supply = dict.fromkeys(model.steps, loading.prepare_ns / workers)
    without = replace(model, supply_ns=supply, loading=replace(loading, workers=workers))
    passes = max(len(step.passes) for steps in model.steps.values() for step in steps)
    step = step_ns(replace(without, supply_ns=dict.fromkeys(model.steps, 0.0)))
    wanted = 1 + loading.computing * min(workers, passes * loading.prepare_ns / step)
    recorded = max(1.0, 1 / loading.cores_per_rank)  # how crowded the cores are already
    crowding = max(1.0, wanted / loading.cores_per_rank) / recorded
    slower = _computing(without, crowding)
    starts = 0.0 if loading.persistent or not loading.epoch else workers * WORKER_STARTS_NS / loading.epoch
    longer = 1 + loading.computing * (crowding - 1)  # the rest of preparing waits, and needs no core
    first = loading.prepare_ns * longer / loading.epoch if loading.epoch else 0.0
    every = {rank: one * longer + starts for rank, one in supply.items()}  # nothing is prepared while they start
    return replace(slower, supply_ns=every, restart_ns=first + starts + TAKING_NS)


def _persistent(model: StepModel, value: Value) -> StepModel:
    """Of workers that come with it: it spares their start."""
    loading = _loading(model)
    if loading.workers and bool(value) != loading.persistent:
        raise Missing("how long workers take to start in each epoch is not seen: it is no wait for a batch")
    return replace(model, loading=replace(loading, persistent=bool(value)))


def _batch(model: StepModel, value: Value) -> StepModel:
    """Forward, backward and the preparing of batches grow with the batch, but for a fixed share; the rest does not."""
    loading = _loading(model)
    if loading.batch is None:
        raise Missing("ranks take batches of different sizes")
    times = int(value or 0) / loading.batch
    if not times:
        raise Missing("a batch holds a sample at least")
    if loading.epoch is not None and times > loading.epoch:
        raise Missing(f"a rank draws {loading.epoch * loading.batch} samples in an epoch, which is no such batch")
    if times > _MOST_BATCHES:
        raise Missing(
            f"the model tells of up to {_MOST_BATCHES * loading.batch} samples, {_MOST_BATCHES} times the batch"
        )
    grown = model.fixed_share + (1 - model.fixed_share) * times
    prepare = None if loading.prepare_ns is None else loading.prepare_ns * times
    return replace(
        model,
        steps=_each_pass(model, lambda one: one.scaled(grown, times)),
        loading=replace(loading, batch=int(value or 0), prepare_ns=prepare, epoch=_shorter(loading.epoch, times)),
        supply_ns={rank: every * times for rank, every in model.supply_ns.items()},
        samples=None if model.samples is None else model.samples * times,
    )


def _shorter(epoch: int | None, times: float) -> int | None:
    """The batches of an epoch in which a batch, or all ranks together, take so many times the samples."""
    return None if epoch is None else max(1, ceil(epoch / times - _ROUNDING))


def _straggler(model: StepModel, value: Value) -> StepModel:
    """The rank that computes longest takes what the one in the middle of the others takes, in other steps."""
    if not value:
        return model
    *rest, latest = sorted(model.steps, key=lambda rank: _own_ns(model, rank))
    if not rest:
        raise Missing("a rank alone is later than no other")
    middle = rest[(len(rest) - 1) // 2]
    supply = {**model.supply_ns, latest: model.supply_ns[middle]} if model.supply_ns else {}
    steps = {**model.steps, latest: _turned(model.steps[middle], 1)}
    others, buffers = ({**own, latest: own[middle]} if own else own for own in (model.others_ns, model.buffers_ns))
    slowdown = _together(model, latest, middle)
    return replace(model, steps=steps, supply_ns=supply, slowdown=slowdown, others_ns=others, buffers_ns=buffers)


def _together(model: StepModel, latest: int, other: int) -> float:
    """The slowdown of backward passes that come all at once: as crowded as late they came before."""
    late_ns = _own_ns(model, latest) - _own_ns(model, other)
    backward_ns = median(sum(one.backward_ns for one in step.passes) for step in model.steps[other])
    crowded = model.loading is not None and model.loading.cores_per_rank <= _FEW_CORES
    if not crowded or not backward_ns:
        return model.slowdown
    return model.slowdown + min(1.0, late_ns / backward_ns) * max(0.0, model.crowded_slowdown - model.slowdown)


def _own_ns(model: StepModel, rank: int) -> float:
    """What a rank's median step takes if it waits for no other."""
    steps = model.steps[rank]
    computing = median(step.after_ns + sum(map(_pass_ns, step.passes)) for step in steps)
    return max(computing, model.supply_ns.get(rank, 0.0) * len(steps[0].passes))


def _pass_ns(one: Pass) -> float:
    return one.loader_ns + one.forward_ns + one.backward_ns


def _compute(model: StepModel, value: Value) -> StepModel:
    """Passes, the optimizer and all else that the ranks' own threads compute take so many times as long."""
    return _computing(model, float(value or 0))


def _alpha(model: StepModel, value: Value) -> StepModel:
    return replace(model, link=replace(model.link, alpha_ns=float(value or 0) * 1e3 * model.latency.alone))


def _rate(model: StepModel, value: Value) -> StepModel:
    return replace(model, link=replace(model.link, bytes_per_ns=float(value or 0)))


def _topology(model: StepModel, settings: Mapping[str, Value]) -> StepModel:
    """Further ranks compute as those recorded do, in other steps."""
    before = len(model.steps)
    ranks = ranks_asked(settings, before)
    recorded, loading = list(model.steps.values()), model.loading

    def also(own: Mapping[int, float]) -> dict[int, float]:
        known = list(own.values())
        return {rank: known[rank % before] for rank in range(ranks)} if known else {}

    return replace(
        model,
        steps={rank: _turned(recorded[rank % before], rank // before) for rank in range(ranks)},
        link=relinked(model.link, before, model.hosts, settings, model.latency.alone),
        supply_ns=also(model.supply_ns),
        others_ns=also(model.others_ns),
        buffers_ns=also(model.buffers_ns),
        loading=loading and replace(loading, epoch=_shorter(loading.epoch, ranks / before if loading.sharded else 1.0)),
        samples=None if model.samples is None else model.samples * ranks / before,
    )


def _turned(steps: Sequence[RankStep], by: int) -> list[RankStep]:
    """Steps in another order, so that ranks do not meet in the very same ones; ranks have as many passes in each."""
    at = by % len(steps) if len({len(step.passes) for step in steps}) == 1 else 0
    return [*steps[at:], *steps[:at]]


def _same_time(model: StepModel, value: Value) -> StepModel:
    """What is learned changes, and not how long that takes."""
    return model


def _no_updates(model: StepModel) -> StepModel:
    return replace(
        model, steps={rank: [replace(step, after_ns=0.0) for step in steps] for rank, steps in model.steps.items()}
    )


def _no_compute(model: StepModel) -> StepModel:
    return replace(model, steps=_each_pass(model, lambda one: one.scaled(0.0)))


def _no_others(model: StepModel) -> StepModel:
    """What is exchanged outside of backward passes takes no time: buffers where they are sent."""
    if not model.others:
        raise Missing("nothing is exchanged outside of backward passes")

    def of(rank: int, step: RankStep) -> RankStep:
        if model.buffers_ns:
            spared = [sent * model.buffers_ns[rank] for sent in _sends(step)]
            pairs = zip(step.passes, spared, strict=True)
            each = tuple(replace(one, forward_ns=max(0.0, one.forward_ns - ns)) for one, ns in pairs)
            return replace(step, passes=each)
        left, passes = model.others_ns.get(rank, 0.0), []
        for one in step.passes:
            passes.append(replace(one, forward_ns=max(0.0, one.forward_ns - left)))
            left = max(0.0, left - one.forward_ns)
        return RankStep(tuple(passes), max(0.0, step.after_ns - left))

    return replace(model, steps={rank: [of(rank, step) for step in steps] for rank, steps in model.steps.items()})


def _no_loader(model: StepModel) -> StepModel:
    steps = _each_pass(model, lambda one: replace(one, loader_ns=0.0))
    return replace(model, steps=steps, supply_ns={}, restart_ns=0.0)


def _no_hooks(model: StepModel) -> StepModel:
    def of(one: Pass) -> Pass:
        times = (one.backward_ns - one.hooks_ns) / one.backward_ns if one.backward_ns else 1.0
        ready = tuple(time * times for time in one.ready_ns)
        return replace(one, backward_ns=one.backward_ns * times, ready_ns=ready, hooks_ns=0.0)

    return replace(model, steps=_each_pass(model, of), copy_ns_per_byte=0.0)


def _loading(model: StepModel) -> Loading:
    if model.loading is None:
        raise Missing("the script draws from no DataLoader that was recorded, or from several")
    return model.loading


def _computing(model: StepModel, times: float) -> StepModel:
    """Everything that the ranks' own threads compute takes so many times as long."""
    steps = {
        rank: [replace(step, after_ns=step.after_ns * times) for step in own]
        for rank, own in _each_pass(model, lambda one: one.scaled(times)).items()
    }
    return replace(model, steps=steps)


def _each_pass(model: StepModel, of: Callable[[Pass], Pass]) -> dict[int, list[RankStep]]:
    return {
        rank: [replace(step, passes=tuple(of(one) for one in step.passes)) for step in steps]
        for rank, steps in model.steps.items()
    }


# In the order in which they are made, but for what the topology is made of: the batch first, for what else is asked for
# is of the batch that there is then; workers late, for what they do depends on how long a step takes; a hook last,
# which adds at the pace of the link. Bounds come after all.
CHANGES: dict[str, Changing] = {
    "loader.batch_size": _batch,
    "loader.persistent_workers": _persistent,
    "straggler.removed": _straggler,
    "compute.times": _compute,
    "link.alpha_us": _alpha,
    "link.gb_per_s": _rate,
    "ddp.no_sync": _no_sync,
    "ddp.bucket_cap_mb": _bucket_cap,
    "ddp.bucket_cap_mb_list": _bucket_caps,
    "ddp.first_bucket_mb": _first_bucket,
    "loader.num_workers": _workers,
    "ddp.comm_hook": _comm_hook,
    "optimizer.lr": _same_time,
    "optimizer.betas": _same_time,
    "optimizer.eps": _same_time,
}
_BEFORE_TOPOLOGY = ("straggler.removed", "link.alpha_us", "link.gb_per_s")
_CAP, _CAPS = "ddp.bucket_cap_mb", "ddp.bucket_cap_mb_list"
# Beyond what these allow, what was recorded says little: caches, memory and a core's turns decide.
_MOST_BATCHES, _WORKERS_A_CORE, _FEW_WORKERS = 64, 8, 16
_OF_GPUS = frozenset({"host.times", "syncs.removed", "copies.non_blocking", "fsdp.prefetch"})
_POWERSGD = "powersgd"
_WORKERS, _PERSISTENT, _PREFETCH = "loader.num_workers", "loader.persistent_workers", "loader.prefetch_factor"
# To start one, and to end it (four of them in epochs of eight batches: 110 to 140 ms more for each epoch; torch 2.13,
# Linux, fork).
WORKER_STARTS_NS = 30e6
# To take a batch that a worker has ready (one tensor, torch 2.13, Linux: 1.2 to 1.6 ms, 1 of it computing).
TAKING_NS = 1.4e6
_HALVED, _FLOAT_BYTES = "float32", 4
_ROUNDING = 1e-9
_FEW_CORES = 2  # to a rank: with no more, exchanges and the passes of other ranks are in each other's way
# What gloo takes for a float beyond half of the time of a 32-bit one (torch 2.13, two ranks on one host, messages of 1
# and 4 MB: 1.0 to 1.4 ns of fp16, up to 0.5 of bf16).
ADDING_NS = {"fp16": 1.0}
# What a hook in Python takes for each bucket, with its casts and what follows the exchange (torch 2.13, gloo, buckets
# of 20 and 40 kB: 66 to 106 us in one process, 84 to 192 between two on one host).
HOOK_NS = 100e3
# What PowerSGD of rank 1 computes for each matrix that it compresses, and for each byte of all gradients (torch 2.13,
# one core, eight models of 1 to 34 MB in 2 to 100 matrices: 0.6 to 1.7 times that, and 2.6 for matrices of 16 MB).
MATRIX_NS, COMPRESSED_NS = 50e3, 0.4
BOUNDS: dict[str, Callable[[StepModel], StepModel]] = {
    "optimizer.fused": _no_updates,
    "optimizer.foreach": _no_updates,
    "loader.prefetch_factor": _no_loader,
    "loader.pin_memory": _no_loader,
    "precision.autocast": _no_compute,
    "precision.float32_matmul": _no_compute,
    "ddp.gradient_as_bucket_view": _no_hooks,
    "ddp.broadcast_buffers": _no_others,
}
_SAVES_WHEN_OFF = frozenset({"ddp.broadcast_buffers"})

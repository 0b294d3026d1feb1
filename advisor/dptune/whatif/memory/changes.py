"""What a change does to the memory of a rank: a function from model to model by the name of the setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from dptune.knobs import Value
from dptune.measured import Missing
from dptune.whatif.memory.model import MemoryModel, Moment, Sharding

# Values that an optimizer keeps for each parameter, in its type. Source: torch.optim, `_init_group` of each.
STATE = {
    **dict.fromkeys(("adam", "adamw", "nadam", "radam", "adamax", "adadelta", "rprop"), 2),
    **dict.fromkeys(("adagrad", "rmsprop", "muon", "sgd_momentum"), 1),
    "sgd": 0,
}
# Tensors as large as the largest parameter that an update of one parameter after another allocates at once.
_UPDATE = {"sgd": 0, "sgd_momentum": 0}
_UPDATES_OF_ADAM = 2
WIDTH = {"fp32": 4, "bf16": 2, "fp16": 2}
_OF_DTYPE = 0.1  # of activations: what may stay as wide as before, as losses and statistics do
_OF_UNITS = 1.0  # units more or less that FSDP may hold at the peak
SWITCHES_OFF = ("off", "none", False)


def changed(model: MemoryModel, changes: Mapping[str, Value]) -> MemoryModel:
    """The memory with these changes together; raises Missing for one that is not known to leave it or to change it."""
    for name, value in sorted(changes.items(), key=lambda change: _ORDER.get(change[0], 0)):
        if name in CHANGES:
            model = CHANGES[name](model, value)
        elif not name.startswith(_UNCHANGED):
            raise Missing(f"the effect of {name} on memory is not known")
    return model


def leaves_memory(changes: Mapping[str, Value]) -> bool:
    """Whether there are changes, and none of them allocates or frees anything that lasts."""
    return bool(changes) and all(name.startswith(_UNCHANGED) for name in changes)


def _each(model: MemoryModel, change: Callable[[Moment], Moment]) -> tuple[Moment, ...]:
    return tuple(map(change, model.moments))


def _batch(model: MemoryModel, value: Value) -> MemoryModel:
    if not model.batch:
        raise Missing("the batch size was not recorded")
    times = float(value or 1) / model.batch
    return replace(
        model,
        batch=int(value or 1),
        moments=_each(model, lambda moment: moment.scaled(activations=times, temporaries=times)),
    )


def _optimizer(model: MemoryModel, value: Value) -> MemoryModel:
    name = str(value)
    local = model.trained / (model.sharding.ranks if model.sharding else 1)
    update = _UPDATE.get(name, _UPDATES_OF_ADAM) * model.largest_parameter
    return replace(
        model,
        optimizer=name,
        state=STATE[name] * local,
        moments=_each(model, lambda moment: replace(moment, optimizer=update if moment.phase == "optimizer" else 0.0)),
    )


def _wrapper(model: MemoryModel, value: Value) -> MemoryModel:
    if value == "ddp":
        return _replicated(model) if model.sharding else model
    return model if model.sharding else _sharded(model)


def _sharded_optimizer(model: MemoryModel, value: Value) -> MemoryModel:
    if value and model.sharding:
        raise Missing("FSDP shards the optimizer already")
    return replace(model, state=model.state / model.ranks) if value else model


def _within_hosts(model: MemoryModel, value: Value) -> MemoryModel:
    if value and model.ranks_of_a_host is None:
        raise Missing("HSDP needs several hosts with the same number of ranks, two or more, all recorded")
    return _parted(model, model.ranks_of_a_host or model.ranks) if value else model


def _sharded(model: MemoryModel) -> MemoryModel:
    """fully_shard on each block in place of DistributedDataParallel."""
    split = model.split
    if split is None:
        raise Missing(model.why_no_split)
    split = replace(split, ranks=model.ranks)

    def of(moment: Moment) -> Moment:
        narrow = moment.scaled(gradients=1 / split.ranks, optimizer=1 / split.ranks)
        return replace(narrow, sharding=split.held(moment))

    last = Moment("backward", gradients=model.trained / split.ranks, sharding=split.at_end(), passed_share=1.0)
    return replace(
        model,
        parameters=model.parameters / split.ranks,
        state=model.state / split.ranks,
        buckets=0.0,
        sharding=split,
        moments=(*_each(model, of), last),
        doubt=model.doubt + _OF_UNITS * max(split.units, default=0.0),
    )


def _replicated(model: MemoryModel) -> MemoryModel:
    """DistributedDataParallel in place of fully_shard."""
    sharding = model.sharding
    assert sharding is not None

    def of(moment: Moment) -> Moment:
        """A unit's gradients, which are alive until they are reduced, are then among those that stay."""
        gradients = min(model.trained, moment.gradients * sharding.ranks)
        optimizer = moment.optimizer * sharding.ranks
        return replace(moment, gradients=gradients, optimizer=optimizer, weights=0.0, sharding=0.0)

    return replace(
        model,
        parameters=model.whole,
        state=model.state * sharding.ranks,
        buckets=model.trained,
        sharding=None,
        moments=_each(model, of),
        doubt=model.doubt + _OF_UNITS * max(sharding.units, default=0.0),
    )


def _resharding(model: MemoryModel, value: Value) -> MemoryModel:
    sharding = _of_fsdp(model)
    return _resplit(model, replace(sharding, reshards=bool(value)))


def _units(model: MemoryModel, value: Value) -> MemoryModel:
    """That many units in place of those that are not the root: neighbours merged, or all of about equal bytes."""
    sharding, count = _of_fsdp(model), max(1, int(value or 1))
    merged = -(-len(sharding.units) // count)  # rounded up
    units = tuple(sum(sharding.units[at : at + merged]) for at in range(0, len(sharding.units), merged))
    if count > len(sharding.units):
        units = (sum(sharding.units) / count,) * count
    return _resplit(model, replace(sharding, units=units))


def _resplit(model: MemoryModel, split: Sharding) -> MemoryModel:
    """Other units, or kept longer: what the recorded moments hold changes by what the formulas change by."""
    before = _of_fsdp(model)

    def of(moment: Moment) -> Moment:
        of_root = split.held(moment) - sum(split.units)  # until the first unit runs
        if before.reshards and not split.reshards and moment.phase == "backward" and of_root <= 2 * split.root:
            return replace(moment, sharding=min(moment.sharding, of_root) + sum(split.units))
        return replace(moment, sharding=max(0.0, moment.sharding + split.held(moment) - before.held(moment)))

    more = abs(max(split.units, default=0.0) - max(before.units, default=0.0))
    return replace(model, sharding=split, moments=_each(model, of), doubt=model.doubt + more)


def _prefetched(direction: str) -> Callable[[MemoryModel, Value], MemoryModel]:
    """Units whose all-gathers are issued ahead: each holds a unit more. One unit ahead is what torch does anyway."""

    def of(model: MemoryModel, value: Value) -> MemoryModel:
        more = max(0, int(value or 0) - 1) * max(_of_fsdp(model).units, default=0.0)

        def later(moment: Moment) -> Moment:
            return replace(moment, sharding=moment.sharding + more) if moment.phase == direction else moment

        return replace(model, moments=_each(model, later), doubt=model.doubt + more / 2)

    return of


def _of_fsdp(model: MemoryModel) -> Sharding:
    if model.sharding is None:
        raise Missing("the model is not sharded by fully_shard")
    return model.sharding


def _world_size(model: MemoryModel, value: Value) -> MemoryModel:
    ranks = int(value or 1)
    model = replace(model, ranks=ranks)
    return model if model.sharding is None else _parted(model, ranks)


def _parted(model: MemoryModel, ranks: int) -> MemoryModel:
    """Shards among another number of ranks."""
    sharding = _of_fsdp(model)
    fewer = sharding.ranks / ranks
    return replace(
        model,
        parameters=model.parameters * fewer,
        state=model.state * fewer,
        sharding=replace(sharding, ranks=ranks),
        moments=_each(model, lambda moment: moment.scaled(gradients=fewer)),
    )


def _dtype(model: MemoryModel, value: Value) -> MemoryModel:
    """Parameters of another type: so are gradients, the optimizer's state and activations, but those of the loss.

    A loss is usually computed in 32 bits; whether the head's output is copied for that is not known, nor whether
    kernels of a CPU work on wider copies of two of their operands.
    """
    times = WIDTH[str(value)] / 4
    split = model.split and replace(
        model.split, root=times * model.split.root, units=tuple(times * unit for unit in model.split.units)
    )

    def of(moment: Moment) -> Moment:
        loss = min(moment.activations, model.loss if moment.phase == "backward" and not moment.passed_share else 0.0)
        temporaries = min(moment.temporaries, loss)
        narrow = moment.scaled(weights=times, gradients=times, optimizer=times, sharding=times)
        return replace(
            narrow,
            activations=times * (moment.activations - loss) + loss,
            temporaries=times * (moment.temporaries - temporaries) + temporaries,
        )

    moments = _each(model, of)
    unsure = model.loss + _OF_DTYPE * max(moment.activations for moment in model.moments) + 4 * model.largest_parameter
    return replace(
        model,
        parameters=times * model.parameters,
        state=times * model.state,
        buckets=times * model.buckets,
        whole=times * model.whole,
        trained=times * model.trained,
        largest_parameter=times * model.largest_parameter,
        split=split,
        sharding=split if model.sharding else None,
        moments=moments,
        doubt=model.doubt + abs(1 - times) * unsure,
    )


def _checkpointing(model: MemoryModel, value: Value) -> MemoryModel:
    if not value:
        if model.discarded is None:
            return model
        more = model.discarded
        moments = _each(model, lambda m: replace(m, activations=m.activations + more * (1 - m.passed_share)))
        return replace(model, discarded=None, moments=moments, doubt=model.doubt + _OF_DTYPE * more)
    if model.discarded is not None:
        return model
    if not model.blocks:
        raise Missing("the trace does not show what each block saves: record a detailed window (--detailed 2)")
    saved, outputs = sum(block for block, _ in model.blocks), sum(output for _, output in model.blocks)
    largest = max(block - output for block, output in model.blocks)  # its output is an input of the next block
    spared = saved - outputs

    def of(moment: Moment) -> Moment:
        """Of what a moment holds of blocks outputs are left, and what one block saves while it runs again."""
        of_blocks = min(moment.activations, saved * (1 - moment.passed_share))
        left = moment.activations - of_blocks * spared / saved if saved else moment.activations
        return replace(moment, activations=left + (largest if moment.phase == "backward" else 0.0))

    return replace(model, discarded=spared, moments=_each(model, of), doubt=model.doubt + 0.5 * largest)


CHANGES: dict[str, Callable[[MemoryModel, Value], MemoryModel]] = {
    "loader.batch_size": _batch,
    "optimizer.name": _optimizer,
    "wrapper": _wrapper,
    "optimizer.sharded": _sharded_optimizer,
    "fsdp.reshard_after_forward": _resharding,
    "fsdp.units": _units,
    "fsdp.within_hosts": _within_hosts,
    "fsdp.forward_prefetch": _prefetched("forward"),
    "fsdp.backward_prefetch": _prefetched("backward"),
    "world_size": _world_size,
    "model.dtype": _dtype,
    "memory.checkpointing": _checkpointing,
}
_ORDER = {"wrapper": -1}  # first: what is set of units is then that of the new ones
# Settings that change times, and no tensor that stays alive.
_UNCHANGED = (
    *("link.", "nodes", "allreduce.", "host.", "compute.", "syncs.", "straggler.", "copies."),
    *("optimizer.lr", "optimizer.betas", "optimizer.eps", "ddp.no_sync", "ddp.broadcast_buffers", "ddp.bucket"),
    *("ddp.first_bucket", "ddp.static_graph", "ddp.find_unused_parameters", "loader.num_workers", "loader.persistent"),
    *("loader.prefetch", "loader.pin_memory", "accumulation.micro_batches", "fsdp.reshard_after_backward"),
)

"""What a change does to the memory of a rank: a function from model to model by the name of the setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from dptune.knobs import Value
from dptune.measured import Missing
from dptune.runfile.facts import Facts
from dptune.whatif.memory.dtypes import (
    OF_DTYPE,
    WIDTH,
    autocast,
    copies_of_weights,
    model_dtype,
    parameter_dtype,
    reduce_dtype,
)
from dptune.whatif.memory.model import MemoryModel, Moment, Sharding, group_size, sharding_of

# Values that an optimizer keeps for each parameter, in its type. Source: torch.optim, `_init_group` of each.
STATE = {
    **dict.fromkeys(("adam", "adamw", "nadam", "radam", "adamax", "adadelta", "rprop"), 2),
    **dict.fromkeys(("adagrad", "rmsprop", "muon", "sgd_momentum"), 1),
    "sgd": 0,
}
# Tensors as large as the largest parameter that an update of one parameter after another allocates at once.
_UPDATE = {"sgd": 0, "sgd_momentum": 0}
_UPDATES_OF_ADAM = 2
_ADAPTIVE = ("adam", "nadam", "radam")  # foreach takes the roots of second moments: torch 2.13, optim/adam.py
_WHOLE_BYTES = WIDTH["fp32"]  # of an element of parameters
# Of the units that are held while the largest runs: the one that runs last gathers no next one, and the buffer of the
# unit before it may be smaller.
_AT_LARGEST = 2.0
_OF_UNITS = 1.0  # units more or less that FSDP may hold at the peak
_UNITS = "fsdp.units"
SWITCHES_OFF = ("off", "none", False)


def changed(model: MemoryModel, changes: Mapping[str, Value]) -> MemoryModel:
    """The memory with these changes together; raises Missing for one that is not known to leave it or to change it."""
    for name, value in sorted(changes.items(), key=lambda change: _ORDER.get(change[0], 0)):
        if model.flat and name in CHANGES and name not in _OF_FLAT:
            raise Missing(
                f"for FullyShardedDataParallel (FSDP1), peak memory is predicted for other batch sizes, not for {name}"
            )
        if name in CHANGES:
            model = CHANGES[name](model, value)
        elif not name.startswith(_UNCHANGED):
            raise Missing(f"the effect of {name} on memory is not known")
    return model


def besides_root(changes: Mapping[str, Value], facts: Sequence[Facts]) -> dict[str, Value]:
    """The changes with the number of units besides a recorded root with parameters, which `fsdp.units` counts."""
    count = int(changes.get(_UNITS) or 0)
    names = {name for fsdp in facts[0].fsdp if fsdp.version == 2 for name in fsdp.names} if facts else set()
    return {**changes, _UNITS: count - 1} if count > 1 and "" in names and len(names) > 1 else dict(changes)


def leaves_memory(changes: Mapping[str, Value]) -> bool:
    """Whether there are changes, and none of them allocates or frees anything that lasts."""
    return bool(changes) and all(name.startswith(_UNCHANGED) for name in changes)


def _batch(model: MemoryModel, value: Value) -> MemoryModel:
    if not model.batch:
        raise Missing("the batch size was not recorded")
    times = float(value or 1) / model.batch
    return replace(_times_the_batch(model, times), batch=int(value or 1))


def _times_the_batch(model: MemoryModel, value: Value) -> MemoryModel:
    """Activations and temporaries in proportion, but 16-bit copies of weights, which autocast saves beside them."""
    times = float(value or 1)

    def of(moment: Moment) -> Moment:
        copies = min(moment.activations, copies_of_weights(model, moment)) if model.autocast else 0.0
        larger = moment.scaled(activations=times, temporaries=times)
        return replace(larger, activations=larger.activations + (1 - times) * copies)

    unsure = abs(1 - times) * model.largest_parameter / 2 if model.autocast else 0.0  # which weights have copies
    return replace(model, moments=model.each(of), doubt=model.doubt + unsure)


def _bucket_view(model: MemoryModel, value: Value) -> MemoryModel:
    """Gradients that are views of DDP's buckets: one of them at a time is also a tensor of its own."""
    if model.sharding:
        raise Missing("the model is not replicated by DistributedDataParallel")
    if bool(value) == (model.buckets == 0):
        return model
    if not value:
        return replace(model, buckets=model.trained)
    moments = model.each(lambda moment: replace(moment, gradients=0.0))
    return replace(model, moments=moments, doubt=model.doubt + model.largest_parameter)


def _optimizer(model: MemoryModel, value: Value) -> MemoryModel:
    name = str(value)
    local = model.trained / (model.sharding.ranks if model.sharding else 1)
    update = _UPDATE.get(name, _UPDATES_OF_ADAM) * model.largest_parameter
    return replace(
        model,
        optimizer=name,
        state=STATE[name] * local,
        moments=model.each(lambda moment: replace(moment, optimizer=update if moment.phase == "optimizer" else 0.0)),
    )


def _wrapper(model: MemoryModel, value: Value) -> MemoryModel:
    if model.offloaded and value == "ddp":
        raise Missing("what offloading keeps in the host's memory was not recorded")
    if value == "ddp":
        return _replicated(model) if model.sharding else model
    return model if model.sharding else _sharded(model)


def _foreach(model: MemoryModel, value: Value) -> MemoryModel:
    """All parameters updated at once: Adam takes the roots of all second moments, others with weight decay sums."""
    if value is None:
        raise Missing("the default of optimizer.foreach depends on the device: set it to true or false")
    local = model.trained / (model.sharding.ranks if model.sharding else 1)
    adaptive = model.optimizer.lower().startswith(_ADAPTIVE)
    at_once = value is True and not model.offloaded
    update = (local if adaptive else 0.0) if at_once else _one_by_one(model)
    return _updating(model, update, doubt=0.0 if adaptive or not at_once else local / 2)


def _fused(model: MemoryModel, value: Value) -> MemoryModel:
    """One kernel updates in place; without it torch updates one by one on a CPU, and all at once on a GPU."""
    return _updating(model, 0.0) if value else _foreach(model, not model.on_cpu)


def _one_by_one(model: MemoryModel) -> float:
    """Bytes that an update of one parameter after another allocates; one that is sharded is the smaller."""
    return _UPDATE.get(model.optimizer.lower(), _UPDATES_OF_ADAM) * model.largest_parameter


def _updating(model: MemoryModel, update: float, doubt: float = 0.0) -> MemoryModel:
    """The same with so many bytes allocated in the optimizer's step."""
    moments = model.each(lambda moment: replace(moment, optimizer=update if moment.phase == "optimizer" else 0.0))
    return replace(model, moments=moments, doubt=model.doubt + doubt)


def _offloaded(model: MemoryModel, value: Value) -> MemoryModel:
    """CPUOffloadPolicy: shards, their gradients and the optimizer's state are in the host's memory.

    A unit's shard is copied to the device before it is gathered, and its reduced gradients back.
    """
    if bool(value) == model.offloaded:
        return model
    if model.on_cpu:
        raise Missing("the run computes on CPUs, whose memory holds the shards already")
    if not value:
        raise Missing("the memory model covers turning offloading on, not off")
    sharding = sharding_of(model)
    shard = max((*sharding.units, sharding.root)) / sharding.ranks
    moments = model.each(lambda moment: replace(moment, gradients=0.0, optimizer=0.0))
    return replace(model, offloaded=True, parameters=0.0, state=0.0, moments=moments, doubt=model.doubt + 2 * shard)


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
        counted = min(split.root, moment.gradients) / split.ranks if moment.passed_share else 0.0  # held whole, below
        return replace(narrow, gradients=narrow.gradients - counted, sharding=split.held(moment, so_far=True))

    last = Moment("backward", gradients=model.trained / split.ranks, sharding=split.at_end(), passed_share=1.0)
    return replace(
        model,
        parameters=model.parameters / split.ranks,
        state=model.state / split.ranks,
        buckets=0.0,
        sharding=split,
        moments=(*model.each(of), last),
        doubt=model.doubt + _OF_UNITS * max(split.units, default=0.0),
    )


def _replicated(model: MemoryModel) -> MemoryModel:
    """DistributedDataParallel in place of fully_shard: it computes in the dtype of the parameters, not in 16 bits."""
    sharding = sharding_of(model)
    if sharding.element_bytes < _WHOLE_BYTES:
        model = parameter_dtype(model, None)
        sharding = sharding_of(model)

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
        moments=model.each(of),
        doubt=model.doubt + _OF_UNITS * max(sharding.units, default=0.0),
    )


def _resharding(model: MemoryModel, value: Value) -> MemoryModel:
    sharding, group = sharding_of(model), group_size(value)
    if group and sharding.ranks % group:
        raise Missing(
            f"fully_shard rejects {group}: it must divide the number of ranks that shard a unit ({sharding.ranks})"
        )
    return _resplit(model, replace(sharding, reshards=value is None or bool(value), group=group))


def _units(model: MemoryModel, value: Value) -> MemoryModel:
    """That many units in place of those that are not the root: neighbours merged, or all of about equal bytes."""
    sharding, count = sharding_of(model), max(1, int(value or 1))
    merged = -(-len(sharding.units) // count)  # rounded up
    units = tuple(sum(sharding.units[at : at + merged]) for at in range(0, len(sharding.units), merged))
    if count > len(sharding.units):
        units = (sum(sharding.units) / count,) * count
    return _resplit(model, replace(sharding, units=units))


def _resplit(model: MemoryModel, split: Sharding) -> MemoryModel:
    """Other units, or kept longer: what the recorded moments hold changes by what the formulas change by."""
    before = sharding_of(model)

    def of(moment: Moment) -> Moment:
        of_root = split.held(moment) - sum(split.units)  # until the first unit runs
        if before.reshards and not split.reshards and moment.phase == "backward" and of_root <= 2 * split.root:
            return replace(moment, sharding=min(moment.sharding, of_root) + sum(split.units))
        return replace(moment, sharding=max(0.0, moment.sharding + split.held(moment) - before.held(moment)))

    more = _AT_LARGEST * abs(max(split.units, default=0.0) - max(before.units, default=0.0))
    return replace(model, sharding=split, moments=model.each(of), doubt=model.doubt + more)


def _unsynchronized(model: MemoryModel, value: Value) -> MemoryModel:
    """Whole gradients add up until the last micro-batch reduces them, unit by unit."""
    sharding = sharding_of(model)
    if not value:
        raise Missing("the memory model covers turning fsdp.no_sync on, not off")
    gradients = sharding.reduced * (sharding.root + sum(sharding.units))

    def of(moment: Moment) -> Moment:
        more = 0.0 if moment.phase == "optimizer" else gradients * (1 - moment.passed_share)
        return replace(moment, sharding=moment.sharding + more)

    largest = max((*sharding.units, sharding.root))
    return replace(model, moments=model.each(of), doubt=model.doubt + sharding.reduced * largest)


def _prefetched(direction: str) -> Callable[[MemoryModel, Value], MemoryModel]:
    """Units whose all-gathers are issued ahead: each holds a unit more. One unit ahead is what torch does anyway."""

    def of(model: MemoryModel, value: Value) -> MemoryModel:
        more = max(0, int(value or 0) - 1) * max(sharding_of(model).units, default=0.0)

        def later(moment: Moment) -> Moment:
            return replace(moment, sharding=moment.sharding + more) if moment.phase == direction else moment

        return replace(model, moments=model.each(later), doubt=model.doubt + more / 2)

    return of


def _world_size(model: MemoryModel, value: Value) -> MemoryModel:
    ranks = int(value or 1)
    model = replace(model, ranks=ranks)
    return model if model.sharding is None else _parted(model, ranks)


def _parted(model: MemoryModel, ranks: int) -> MemoryModel:
    """Shards among another number of ranks."""
    sharding = sharding_of(model)
    fewer = sharding.ranks / ranks
    return replace(
        model,
        parameters=model.parameters * fewer,
        state=model.state * fewer,
        sharding=replace(sharding, ranks=ranks),
        moments=model.each(lambda moment: moment.scaled(gradients=fewer)),
    )


def _checkpointing(model: MemoryModel, value: Value) -> MemoryModel:
    if not value:
        if model.discarded is None:
            return model
        more = model.discarded
        moments = model.each(lambda m: replace(m, activations=m.activations + more * (1 - m.passed_share)))
        return replace(model, discarded=None, moments=moments, doubt=model.doubt + OF_DTYPE * more)
    if model.discarded is not None:
        return model
    if not model.blocks:
        raise Missing("the trace does not show what each block saves: record a detailed window (--detailed 2)")
    saved, outputs = sum(block for block, _ in model.blocks), sum(output for _, output in model.blocks)
    largest = max(block - output for block, output in model.blocks)  # its output is an input of the next block
    spared = saved - outputs

    def of(moment: Moment) -> Moment:
        """Of what a moment holds of blocks outputs are left, and what one block saves while it runs again: the last one
        once what the loss saves is freed.
        """
        of_blocks = min(max(0.0, moment.activations - model.kept), saved)
        left = moment.activations - of_blocks * spared / saved if saved else moment.activations
        if moment.phase == "backward":
            left += largest if moment.passed_share else max(0.0, largest - model.loss)
        return replace(moment, activations=left)

    return replace(model, discarded=spared, moments=model.each(of), doubt=model.doubt + 0.5 * largest)


CHANGES: dict[str, Callable[[MemoryModel, Value], MemoryModel]] = {
    "loader.batch_size": _batch,
    "batch.times": _times_the_batch,
    "ddp.gradient_as_bucket_view": _bucket_view,
    "optimizer.name": _optimizer,
    "wrapper": _wrapper,
    "optimizer.sharded": _sharded_optimizer,
    "fsdp.reshard_after_forward": _resharding,
    _UNITS: _units,
    "fsdp.no_sync": _unsynchronized,
    "fsdp.within_hosts": _within_hosts,
    "fsdp.forward_prefetch": _prefetched("forward"),
    "fsdp.backward_prefetch": _prefetched("backward"),
    "world_size": _world_size,
    "model.dtype": model_dtype,
    "fsdp.param_dtype": parameter_dtype,
    "fsdp.reduce_dtype": reduce_dtype,
    "fsdp.offload_policy": _offloaded,
    "precision.autocast": autocast,
    "optimizer.fused": _fused,
    "optimizer.foreach": _foreach,
    "memory.checkpointing": _checkpointing,
}
# What changes no unit of FullyShardedDataParallel.
_OF_FLAT = ("loader.batch_size", "batch.times")
# First the wrapper: what is set of units is then that of the new ones. Checkpoints are of blocks as they were recorded.
# Offloading, and how an optimizer updates, come after what they depend on.
_ORDER = {
    "wrapper": -2,
    "memory.checkpointing": -1,
    **dict.fromkeys(("fsdp.offload_policy", "optimizer.foreach", "optimizer.fused"), 1),
}
# Settings that change times, and no tensor that stays alive.
_UNCHANGED = (
    *("link.", "nodes", "allreduce.", "host.", "compute.", "syncs.", "straggler.", "copies."),
    *("optimizer.lr", "optimizer.betas", "optimizer.eps", "ddp.no_sync", "ddp.broadcast_buffers", "ddp.bucket"),
    *("ddp.first_bucket", "ddp.static_graph", "ddp.find_unused_parameters", "loader.num_workers", "loader.persistent"),
    *("loader.prefetch", "loader.pin_memory", "accumulation.micro_batches", "fsdp.reshard_after_backward"),
)

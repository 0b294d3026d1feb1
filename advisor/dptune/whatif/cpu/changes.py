"""Changes of knobs, as changes of a step model. What a model cannot tell raises Missing.

Those of communication stand in `communication`, those of batches in `loaders`; those with only a bound in `bounds`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import mean, median

from dptune.knobs import TAKE_NO_TIME, Value
from dptune.knobs.patched import FSDP
from dptune.measured import Missing
from dptune.whatif.blocks import unknown
from dptune.whatif.bounds import BOUNDS, bounded
from dptune.whatif.cpu import unit_changes
from dptune.whatif.cpu.communication import bucket_cap, bucket_caps, comm_hook, first_bucket, no_sync
from dptune.whatif.cpu.hybrid import (
    LINK_WITHIN,
    WITHIN_HOSTS,
    check_link_within,
    check_one_group,
    hybrid_of,
    is_hybrid,
    within_hosts,
)
from dptune.whatif.cpu.loaders import batch, loading_of, micro_batches, persistent, shorter, workers
from dptune.whatif.cpu.model import Pass, RankStep, StepModel
from dptune.whatif.cpu.topology import TOPOLOGY, ranks_asked, relinked
from dptune.whatif.cpu.unit_changes import sharding_of
from dptune.whatif.cpu.wrappers import sharded, wrapper
from dptune.whatif.scenarios import ONLY_MEMORY, SCENARIOS

Changing = Callable[[StepModel, Value], StepModel]


def changed(model: StepModel, settings: Mapping[str, Value]) -> StepModel:
    """The model after all changes together, at its best where one is bounded. Raises Missing for any other knob.

    The topology is made of the ranks and of the link that there are then: without the straggler, with another link.
    """
    if _WRAPPER in settings:
        model, settings = _wrapped(model, settings)
    _check_wrapper(model, settings)
    for name in _BEFORE_TOPOLOGY:
        if name in settings:
            model = CHANGES[name](model, settings[name])
    check_link_within(settings)
    model = _placed(model, settings)
    if settings.get(_PERSISTENT) and not settings.get(_WORKERS) and not loading_of(model).workers:
        raise Missing("persistent_workers needs num_workers > 0")
    if settings.get(_PREFETCH) and model.loading and not settings.get(_WORKERS, model.loading.workers):
        raise Missing("prefetch_factor needs num_workers > 0")
    only = bounded(settings)
    if {_CAP, _CAPS} <= settings.keys():
        raise Missing("bucket sizes are set twice: one size for all, and a list")
    for name in sorted(settings.keys() - set(TOPOLOGY) - set(only) - CHANGES.keys()):
        if name in BOUNDS:
            raise Missing(f"the model gives only an upper bound for other values of {name}")
        if name in _UNKNOWN:
            raise Missing(_UNKNOWN[name])
        if name in ONLY_MEMORY:
            raise Missing(f"only the peak memory with another {name} is predicted")
        which = "only the step model of GPUs" if name in SCENARIOS else "no step model"
        raise Missing(f"{which} predicts {name}")
    for name, change in CHANGES.items():
        if name in settings and name not in only and name not in _BEFORE_TOPOLOGY:
            model = change(model, settings[name])
    for name, bound in BOUNDS.items():
        if name in only:
            model = bound(model)
    return model


def _placed(model: StepModel, settings: Mapping[str, Value]) -> StepModel:
    """The model with other ranks and links, and shards within hosts: all from the link that was measured."""
    asks = bool(settings.get(WITHIN_HOSTS)) and not is_hybrid(model)
    hybrid = hybrid_of(model, settings) if asks else None
    if not settings.keys().isdisjoint(TOPOLOGY):
        model = _topology(model, settings)
    return model if hybrid is None else replace(model, sharding=replace(sharding_of(model), hybrid=hybrid))


def _wrapped(model: StepModel, settings: Mapping[str, Value]) -> tuple[StepModel, Mapping[str, Value]]:
    """The model with the wrapper that is set, and the other settings; those of units and buckets are of that one."""
    count = settings.get(_UNITS)
    if settings[_WRAPPER] == FSDP and model.sharding is None and count:
        rest = {name: value for name, value in settings.items() if name not in (_WRAPPER, _UNITS)}
        return sharded(model, int(count)), rest
    return wrapper(model, settings[_WRAPPER]), {name: value for name, value in settings.items() if name != _WRAPPER}


def _check_wrapper(model: StepModel, settings: Mapping[str, Value]) -> None:
    """Raise Missing for settings of a wrapper that the script does not use."""
    other, absent = (
        ("fsdp.", "the script does not call fully_shard")
        if model.sharding is None
        else ("ddp.", "the model is sharded by fully_shard, which has no buckets")
    )
    if names := sorted(name for name in settings if name.startswith(other) and name in CHANGES.keys() | BOUNDS.keys()):
        raise Missing(f"{names[0]} has no effect: {absent}")


def _straggler(model: StepModel, value: Value) -> StepModel:
    """The rank that computes longest takes what the one in the middle of the others takes, in other steps."""
    if not value:
        return model
    *rest, latest = sorted(model.steps, key=lambda rank: _own_ns(model, rank))
    if not rest:
        raise Missing("a single-rank run has no straggler")
    middle = rest[(len(rest) - 1) // 2]
    supply = {**model.supply_ns, latest: model.supply_ns[middle]} if model.supply_ns else {}
    steps = {**model.steps, latest: _turned(model.steps[middle], 1)}
    others, buffers = (
        {**by_rank, latest: by_rank[middle]} if by_rank else by_rank for by_rank in (model.others_ns, model.buffers_ns)
    )
    slowdown = _together(model, latest, middle)
    return replace(model, steps=steps, supply_ns=supply, slowdown=slowdown, others_ns=others, buffers_ns=buffers)


def _balanced(model: StepModel, value: Value) -> StepModel:
    """Forward and backward work of each step is spread evenly over the ranks; the sum of it stays."""
    if not value:
        return model
    if len(model.steps) < 2:
        raise Missing("a single-rank run has no other ranks to share work with")
    passes = {len(step.passes) for rank_steps in model.steps.values() for step in rank_steps}
    if len(passes) > 1:
        raise Missing("ranks have different numbers of backward passes per step")
    count = min(map(len, model.steps.values()))
    even = [
        [mean(_work_ns(rank_steps[step].passes[at]) for rank_steps in model.steps.values()) for at in range(*passes)]
        for step in range(count)
    ]
    steps = {
        rank: [
            replace(
                rank_step,
                passes=tuple(
                    _of_work(each, work_ns + model.uneven_left * (_work_ns(each) - work_ns))
                    for each, work_ns in zip(rank_step.passes, even[step], strict=True)
                ),
            )
            for step, rank_step in enumerate(rank_steps[:count])
        ]
        for rank, rank_steps in model.steps.items()
    }
    *rest, latest = sorted(model.steps, key=lambda rank: _own_ns(model, rank))
    return replace(model, steps=steps, slowdown=_together(model, latest, rest[(len(rest) - 1) // 2]))


def _work_ns(pass_: Pass) -> float:
    """What grows with the samples of a pass."""
    return pass_.forward_ns - pass_.sent_ns + pass_.backward_ns - pass_.hooks_ns


def _of_work(pass_: Pass, work_ns: float) -> Pass:
    """The pass with another amount of that, in the same proportion of forward and backward."""
    times = work_ns / _work_ns(pass_) if _work_ns(pass_) else 1.0
    backward_ns = (pass_.backward_ns - pass_.hooks_ns) * times + pass_.hooks_ns
    return pass_.lasting((pass_.forward_ns - pass_.sent_ns) * times + pass_.sent_ns, backward_ns)


def _together(model: StepModel, latest: int, other: int) -> float:
    """The slowdown of backward passes that come all at once: as crowded as late they came before."""
    late_ns = _own_ns(model, latest) - _own_ns(model, other)
    backward_ns = median(sum(pass_.backward_ns for pass_ in step.passes) for step in model.steps[other])
    crowded = model.loading is not None and model.loading.cores_per_rank <= _FEW_CORES
    if not crowded or not backward_ns:
        return model.slowdown
    return model.slowdown + min(1.0, late_ns / backward_ns) * max(0.0, model.crowded_slowdown - model.slowdown)


def _own_ns(model: StepModel, rank: int) -> float:
    """What a rank's median step takes if it waits for no other."""
    steps = model.steps[rank]
    computing = median(step.after_ns + sum(map(_pass_ns, step.passes)) for step in steps)
    return max(computing, model.supply_ns.get(rank, 0.0) * len(steps[0].passes))


def _pass_ns(pass_: Pass) -> float:
    return pass_.loader_ns + pass_.forward_ns + pass_.backward_ns


def _compute(model: StepModel, value: Value) -> StepModel:
    """Passes, the optimizer and all else that the ranks' own threads compute take so many times as long."""
    return model.computing(float(value or 0))


def _alpha(model: StepModel, value: Value) -> StepModel:
    check_one_group(model)
    return replace(model, link=replace(model.link, alpha_ns=float(value or 0) * 1e3 * model.latency.alone))


def _rate(model: StepModel, value: Value) -> StepModel:
    check_one_group(model)
    return replace(model, link=replace(model.link, bytes_per_ns=float(value or 0)))


def _offload(model: StepModel, value: Value) -> StepModel:
    """Shards are in the host's memory already, and moving them there is none: torch returns the same tensor."""
    if value:
        raise Missing("the run computes on CPUs: the host's memory holds the shards already")
    return model


def _of_hybrid(model: StepModel, value: Value) -> StepModel:
    """A link within hosts is part of what shards within hosts make of the model."""
    return model


def _topology(model: StepModel, settings: Mapping[str, Value]) -> StepModel:
    """Further ranks compute as those recorded do, in other steps."""
    check_one_group(model)
    before = len(model.steps)
    ranks = ranks_asked(settings, before)
    recorded, loading = list(model.steps.values()), model.loading

    def also(by_rank: Mapping[int, float]) -> dict[int, float]:
        known = list(by_rank.values())
        return {rank: known[rank % before] for rank in range(ranks)} if known else {}

    return replace(
        model,
        steps={rank: _turned(recorded[rank % before], rank // before) for rank in range(ranks)},
        link=relinked(model.link, before, model.hosts, settings, model.latency.alone),
        supply_ns=also(model.supply_ns),
        others_ns=also(model.others_ns),
        buffers_ns=also(model.buffers_ns),
        loading=loading and replace(loading, epoch=shorter(loading.epoch, ranks / before if loading.sharded else 1.0)),
        samples=None if model.samples is None else model.samples * ranks / before,
    )


def _turned(steps: Sequence[RankStep], by: int) -> list[RankStep]:
    """Steps in another order, so that ranks do not meet in the very same ones; ranks have as many passes in each."""
    at = by % len(steps) if len({len(step.passes) for step in steps}) == 1 else 0
    return [*steps[at:], *steps[:at]]


def _same_time(model: StepModel, value: Value) -> StepModel:
    """What is learned changes, and not how long that takes."""
    return model


# In the order in which they are made, but for what the topology is made of: the batch first, for what else is asked for
# is of the batch that there is then; workers late, for what they do depends on how long a step takes; a hook last,
# which adds at the pace of the link. Bounds come after all.
CHANGES: dict[str, Changing] = {
    "wrapper": wrapper,
    "loader.batch_size": batch,
    "accumulation.micro_batches": micro_batches,
    "loader.persistent_workers": persistent,
    "straggler.removed": _straggler,
    "straggler.balanced": _balanced,
    "compute.times": _compute,
    "link.alpha_us": _alpha,
    "link.gb_per_s": _rate,
    "ddp.no_sync": no_sync,
    "ddp.bucket_cap_mb": bucket_cap,
    "ddp.bucket_cap_mb_list": bucket_caps,
    "ddp.first_bucket_mb": first_bucket,
    "fsdp.units": unit_changes.units,
    "fsdp.blocks_per_unit": unknown,
    "fsdp.reshard_after_forward": unit_changes.reshard_after_forward,
    "fsdp.forward_prefetch": unit_changes.prefetch,
    "fsdp.backward_prefetch": unit_changes.prefetch,
    "fsdp.reduce_dtype": unit_changes.reduce_dtype,
    "fsdp.no_sync": unit_changes.no_sync,
    WITHIN_HOSTS: within_hosts,
    **dict.fromkeys(LINK_WITHIN, _of_hybrid),
    "fsdp.offload_policy": _offload,
    "loader.num_workers": workers,
    "ddp.comm_hook": comm_hook,
    **dict.fromkeys(TAKE_NO_TIME, _same_time),
}
PREDICTED = frozenset({*CHANGES, *BOUNDS, *TOPOLOGY})
_BEFORE_TOPOLOGY = ("straggler.removed", "straggler.balanced", "link.alpha_us", "link.gb_per_s")
_WRAPPER, _UNITS = "wrapper", "fsdp.units"
_CAP, _CAPS = "ddp.bucket_cap_mb", "ddp.bucket_cap_mb_list"
_WORKERS, _PERSISTENT, _PREFETCH = "loader.num_workers", "loader.persistent_workers", "loader.prefetch_factor"
_UNKNOWN = {
    "fsdp.unshard_in_backward": "which units hold only embeddings was not recorded",
    "fsdp.reshard_after_backward": "which micro-batches of the script keep gathered parameters was not recorded",
}
_FEW_CORES = 2  # to a rank: with no more, collectives and the passes of other ranks are in each other's way

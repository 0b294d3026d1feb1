"""A second, independent source of the peak memory: torch's trackers, with the script's model under fake tensors.

The recording is only asked how the model is wrapped; the tensors are those that the model's code allocates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dptune.capture.effect import in_force
from dptune.capture.tracked_memory import TrackedMemory, TrackedMemoryRequest, track
from dptune.knobs import KNOBS, Value
from dptune.knobs.fsdp import DTYPES
from dptune.measured import Measured, Missing
from dptune.predicted import MemoryPrediction
from dptune.runfile.facts import Facts
from dptune.whatif.memory.changes import besides_root, leaves_memory
from dptune.whatif.memory.model import ranks_of_a_host


def tracked(
    predictions: Sequence[MemoryPrediction], function: str, measured: Measured, facts: Sequence[Facts]
) -> list[MemoryPrediction]:
    """The predictions with the peaks that torch's trackers count, unchanged and with each set of changes.

    `function`: FILE:NAME of the function that builds the model. Raises CaptureError where no Python has torch.
    """
    requests: list[TrackedMemoryRequest | str] = []
    for changes in ({}, *(prediction.changes for prediction in predictions)):
        try:
            requests.append(requested(function, measured, facts, changes))
        except Missing as lack:
            requests.append(lack.reason)
    asked = [request for request in requests if isinstance(request, TrackedMemoryRequest)]
    answers = iter(track(asked) if asked else [])
    now, *then = (TrackedMemory(why=request) if isinstance(request, str) else next(answers) for request in requests)
    return [_with(prediction, now, after) for prediction, after in zip(predictions, then, strict=True)]


def requested(
    function: str, measured: Measured, facts: Sequence[Facts], changes: Mapping[str, Value]
) -> TrackedMemoryRequest:
    """How the model is wrapped with these changes; raises Missing for what torch's trackers cannot show."""
    request = _recorded(function, measured, facts)
    asked = besides_root(changes, facts)
    new = {name: value for name, value in asked.items() if name not in KNOBS or not in_force(name, value, facts)}
    for name, value in sorted(new.items(), key=lambda change: change[0] != "wrapper"):
        if name == "fsdp.within_hosts" and value:
            request = _within_hosts(request, facts)
        elif not leaves_memory({name: value}):
            request = _changed(request, name, value)
    if request.sharded and not (request.paths or request.block):
        raise Missing("the model has no list of equal blocks, so the units of fully_shard are unknown")
    return request


def _recorded(function: str, measured: Measured, facts: Sequence[Facts]) -> TrackedMemoryRequest:
    if not facts:
        raise Missing("the run was not recorded by dptune, so how its model is wrapped is unknown")
    rank_facts = facts[0]
    sharded = [fsdp for fsdp in rank_facts.fsdp if fsdp.mesh]
    if any(fsdp.version == 1 for fsdp in rank_facts.fsdp):
        raise Missing("torch's trackers cover fully_shard, not FullyShardedDataParallel")
    if any(fsdp.offload for fsdp in sharded):
        raise Missing("torch's trackers do not count offloaded shards separately")
    loaders = [loader.batch_size for loader in rank_facts.loaders if loader.batches_drawn and loader.batch_size]
    if len(loaders) != 1:
        raise Missing("the batch size was not recorded")
    units = [fsdp for fsdp in sharded if any(fsdp.names)]
    policy = next(iter(units or sharded), None)
    paths = [path for fsdp in units for name in fsdp.names if name for path in name.split(", ")]
    return TrackedMemoryRequest(
        function,
        batch=loaders[0],
        mesh=tuple(sharded[0].mesh if sharded else [measured.known("world_size") or rank_facts.world_size]),
        sharded=bool(sharded),
        paths=tuple(paths),
        block=rank_facts.tensors.block if rank_facts.tensors else "",
        units=sum(len([name for name in fsdp.names if name]) for fsdp in units) or None,
        reshard=policy.reshard_after_forward if policy else None,
        param_dtype=policy.parameter_dtype if policy else None,
        reduce_dtype=policy.reduce_dtype if policy else None,
        checkpointing=rank_facts.checkpointing is not None,
        buckets=any(not module.gradient_as_bucket_view for module in rank_facts.ddp),
        copies=rank_facts.backend == "gloo",
    )


def _changed(request: TrackedMemoryRequest, name: str, value: Value) -> TrackedMemoryRequest:
    if name == "loader.batch_size":
        return replace(request, batch=int(value or 1))
    if name == "batch.times":
        return replace(request, batch=max(1, round(request.batch * float(value or 1))))
    if name == "memory.checkpointing":
        return replace(request, checkpointing=bool(value))
    if name == "ddp.gradient_as_bucket_view":
        return replace(request, buckets=not value and not request.sharded)
    if name == "wrapper":
        sharded = value == "fsdp"
        return request if sharded == request.sharded else replace(request, sharded=sharded, buckets=not sharded)
    if name == "world_size":
        if len(request.mesh) > 1:
            raise Missing("a two-dimensional mesh of another number of ranks is not determined by world_size")
        return replace(request, mesh=(int(value or 1),))
    if not request.sharded:
        raise Missing(f"torch's trackers cannot show {name}")
    if name == "fsdp.units":
        return replace(request, units=int(value or 1))
    if name == "fsdp.reshard_after_forward":
        return replace(request, reshard=None if value is None else value if isinstance(value, bool) else _whole(value))
    dtype = None if value is None else DTYPES.get(str(value))
    if name == "fsdp.param_dtype":
        return replace(request, param_dtype=dtype)
    if name == "fsdp.reduce_dtype":
        return replace(request, reduce_dtype=dtype)
    raise Missing(f"torch's trackers cannot show {name}")


def _whole(value: Value) -> int:
    return int(float(str(value)))


def _within_hosts(request: TrackedMemoryRequest, facts: Sequence[Facts]) -> TrackedMemoryRequest:
    (ranks,) = request.mesh if len(request.mesh) == 1 else (0,)
    per_host = ranks_of_a_host(facts, ranks)
    if per_host is None:
        raise Missing("HSDP needs several hosts with the same number of ranks, two or more, all recorded")
    return replace(request, mesh=(ranks // per_host, per_host))


def _with(prediction: MemoryPrediction, now: TrackedMemory, then: TrackedMemory) -> MemoryPrediction:
    figures = {"tracked_bytes": then.peak_bytes, "tracked_now_bytes": now.peak_bytes}
    missing = {name: why for name, why in prediction.missing.items() if name not in figures}
    whys = {"tracked_bytes": then.why, "tracked_now_bytes": now.why}
    missing.update({name: whys[name] for name, size in figures.items() if size is None})
    return prediction.model_copy(update={**figures, "missing": missing})

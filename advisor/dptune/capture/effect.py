"""Whether settings that were changed from outside took effect: read off the facts, whatever the applier believes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dptune.knobs import ENVIRONMENT
from dptune.runfile.facts import DdpFacts, Facts, LoaderFacts, OptimizerFacts

MIB = 2**20
_TORCHS_BUCKET_BYTES = 25 * MIB

_NO_DDP = "the script made no DistributedDataParallel"
_NO_LOADER = "the script drew no batch from a DataLoader"
_NO_OPTIMIZER = "the script made no optimizer"

# What stands there now, one value for each thing that has the setting; none where nothing has it.
Reading = Callable[[Facts, Any], Iterator[Any]]


def without_effect(settings: Mapping[str, Any], facts: Sequence[Facts]) -> dict[str, str]:
    """The settings that did not take effect on every rank, by the names of their knobs, with the reason."""
    found: dict[str, str] = {}
    for name, value in settings.items():
        for own in facts:
            if why := _lacks(name, value, own):
                found[name] = why if len(facts) == 1 else f"rank {own.rank}: {why}"
                break
    return found


def _lacks(name: str, value: Any, own: Facts) -> str:
    if name.startswith(ENVIRONMENT):
        variable = name.removeprefix(ENVIRONMENT)
        told = own.environment.get(variable)
        return "" if told == str(value) or told is None else f"{variable} is {told} in the script"
    read, nothing = READINGS[name]
    there = list(read(own, value))
    if not there:
        return nothing
    other = [one for one in there if one != value]
    return f"it is {other[0]} there" if other else ""


def _ddp(get: Callable[[DdpFacts], Any]) -> Reading:
    return lambda own, _: (get(one) for one in own.ddp)


def _bucket_cap(own: Facts, value: float | None) -> Iterator[Any]:
    wanted = _TORCHS_BUCKET_BYTES if value is None else int(value * MIB)
    for one in own.ddp:
        cap = one.bucket_cap_bytes
        yield value if cap == wanted else None if cap is None else cap / MIB


def _first_bucket(own: Facts, value: float) -> Iterator[Any]:
    size = own.settings.get("distributed.first_bucket_bytes")
    if isinstance(size, int):
        yield from [value if size == int(value * MIB) else size / MIB] * len(own.ddp)


def _bucket_caps(own: Facts, value: str) -> Iterator[Any]:
    wanted = [int(float(size) * MIB) for size in value.split(",")]
    for one in own.ddp:
        there = one.bucket_caps_bytes
        yield value if there == wanted else ",".join(f"{cap / MIB:g}" for cap in there) or "one size for all"


def _drawn(get: Callable[[LoaderFacts], Any], applies: Callable[[LoaderFacts], bool] = lambda _: True) -> Reading:
    """Of the loaders that the training thread drew from."""
    return lambda own, _: (get(one) for one in own.loaders if one.batches_drawn and applies(one))


def _optimizer(get: Callable[[OptimizerFacts], Any]) -> Reading:
    return lambda own, _: (bool(get(one)) for one in own.optimizers)


def _setting(name: str) -> Reading:
    return lambda own, _: iter([own.settings[name]] if name in own.settings else [])


def _hook(own: Facts, value: str) -> Iterator[Any]:
    for one in own.ddp:
        name = one.comm_hook or "none"
        yield next((word for word in ("fp16", "bf16", "powersgd") if f"{word}_gradients" in name), name)


def _left_out(own: Facts, value: bool) -> Iterator[Any]:
    """Whether passes went by without an exchange, in the steps of most micro-batches: an epoch may end with fewer."""
    passes = [each for window in own.windows for each in zip(window.backwards, window.unsynced_backwards, strict=False)]
    most = max((count for count, _ in passes), default=0)
    if own.ddp and most > 1:
        whole = [unsynced for count, unsynced in passes if count == most]
        yield value if all(unsynced == (most - 1 if value else 0) for unsynced in whole) else not value


def _autocast(own: Facts, value: str) -> Iterator[Any]:
    if own.ddp:
        kind = (own.autocast or "").rpartition(":")[2]
        yield {"bfloat16": "bf16", "float16": "fp16"}.get(kind, "off")


READINGS: Mapping[str, tuple[Reading, str]] = {
    "ddp.bucket_cap_mb": (_bucket_cap, _NO_DDP),
    "ddp.bucket_cap_mb_list": (_bucket_caps, _NO_DDP),
    "ddp.first_bucket_mb": (_first_bucket, _NO_DDP),
    "ddp.comm_hook": (_hook, _NO_DDP),
    "ddp.find_unused_parameters": (_ddp(lambda one: one.find_unused_parameters), _NO_DDP),
    "ddp.static_graph": (_ddp(lambda one: one.static_graph), _NO_DDP),
    "ddp.gradient_as_bucket_view": (_ddp(lambda one: one.gradient_as_bucket_view), _NO_DDP),
    "ddp.broadcast_buffers": (_ddp(lambda one: one.broadcast_buffers), _NO_DDP),
    "ddp.no_sync": (_left_out, "no step has several backward passes, of a DistributedDataParallel"),
    "loader.num_workers": (_drawn(lambda one: one.num_workers), _NO_LOADER),
    "loader.prefetch_factor": (_drawn(lambda one: one.prefetch_factor), _NO_LOADER),
    "loader.persistent_workers": (_drawn(lambda one: one.persistent_workers), _NO_LOADER),
    "loader.pin_memory": (_drawn(lambda one: one.pin_memory), _NO_LOADER),
    "loader.batch_size": (_drawn(lambda one: one.batch_size), _NO_LOADER),
    "precision.float32_matmul": (_setting("float32_matmul_precision"), "torch did not tell"),
    "precision.autocast": (_autocast, _NO_DDP),
    "cudnn.benchmark": (_setting("backends.cudnn.benchmark"), "torch did not tell"),
    "cudnn.allow_tf32": (_setting("backends.cudnn.allow_tf32"), "torch did not tell"),
    "optimizer.fused": (_optimizer(lambda one: one.fused), _NO_OPTIMIZER),
    "optimizer.foreach": (_optimizer(lambda one: one.foreach), _NO_OPTIMIZER),
}

"""Settings that often pay and that nothing predicts for this run: they are tried last, if time is left.

Each is one that its recording shows room for: a loader that steps wait for, more threads or fewer than the cores of a
rank, an optimizer of torch that updates tensors one by one, bucket sizes other than DDP's own, DDP that copies
gradients into buckets, units of fully_shard that are gathered twice, a model that is not compiled. Settings that may
change training results are last.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence

from dptune.knobs import Value, knob
from dptune.measured import Measured
from dptune.runfile.facts import Facts
from dptune.tune.candidate import LEAST_GAIN, Candidate, settings_at, unpredicted_candidate
from dptune.tune.larger_batch import larger_batch

_WORKERS = (1, 2, 4)
_BUCKET_MIB = 25  # DDP's own
_PREFETCH = 2  # units; torch gathers one ahead itself in backward passes, and on GPUs in forward passes
_COMPILERS = {"cpu": ("CXX", ("g++",)), "cuda": ("CC", ("gcc", "clang"))}  # what TorchInductor and Triton call
# glibc maps each large tensor anew and returns it to the kernel, so each step pays page faults: mallopt(3).
_KEEP_MEMORY: dict[str, Value] = {"env.MALLOC_MMAP_MAX_": "0", "env.MALLOC_TRIM_THRESHOLD_": "-1"}


def unpredicted(measured: Measured, facts: Sequence[Facts]) -> Iterator[Candidate]:
    """The candidates, those that keep training results the same first. None without a recording's facts."""
    if not facts:
        return
    first = facts[0]
    on_gpu = _kind(first) == "cuda"
    yield from _loader(measured, first)
    yield from _threads(first, len({rank.local_rank for rank in facts}))
    yield from _optimizer(first)
    yield from _buckets(measured, first)
    yield from _compiled(first)
    if len(first.ddp) == 1:
        yield _candidate(first.ddp[0].where, {"ddp.gradient_as_bucket_view": True})
    yield from _sharding(first)
    if on_gpu:
        yield _candidate(None, {"cudnn.benchmark": True})
        yield _candidate(None, {"env.PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
    elif _kind(first) == "cpu":
        yield _candidate(None, _KEEP_MEMORY)
    yield from larger_batch(measured, first)
    if on_gpu:
        yield _candidate(None, {"precision.float32_matmul": "high"})
        if first.ddp:  # which autocast is set around from outside
            yield _candidate(None, {"precision.autocast": "bf16"})
    yield from _narrow_sharding(first)


def _kind(facts: Facts) -> str:
    return facts.device.kind if facts.device is not None else ""


def _loader(measured: Measured, facts: Facts) -> Iterator[Candidate]:
    """Numbers of workers, of one loader that steps wait for."""
    wait = measured.input.known("wait_share")
    if len(facts.loaders) != 1 or wait is None or wait < LEAST_GAIN:
        return
    loader = facts.loaders[0]
    cores = (facts.device.usable_cores if facts.device else None) or 1
    if loader.iterable or loader.num_workers is None:
        return  # each worker would repeat an iterable data set
    for workers in _WORKERS:
        if workers <= cores and workers != loader.num_workers:
            keep: dict[str, Value] = {} if loader.persistent_workers else {"loader.persistent_workers": True}
            yield _candidate(loader.where, {"loader.num_workers": workers, **keep})
    if _kind(facts) == "cuda":
        yield _candidate(loader.where, {"loader.pin_memory": True})


def _threads(facts: Facts, ranks: int) -> Iterator[Candidate]:
    """The cores of a rank, and one thread, of a rank that computes on a CPU."""
    device = facts.device
    if device is None or device.kind != "cpu" or not device.usable_cores or not device.torch_threads:
        return
    for threads in dict.fromkeys((max(1, device.usable_cores // max(1, ranks)), 1)):
        if threads != device.torch_threads:
            yield _candidate(None, {"env.OMP_NUM_THREADS": str(threads)})


def _optimizer(facts: Facts) -> Iterator[Candidate]:
    if len(facts.optimizers) != 1:
        return
    optimizer = facts.optimizers[0]
    if optimizer.name in knob("optimizer.fused").classes and not optimizer.fused and not optimizer.foreach:
        yield _candidate(optimizer.where, {"optimizer.fused": True})
    if optimizer.name in knob("optimizer.foreach").classes and not optimizer.fused and not optimizer.foreach:
        yield _candidate(optimizer.where, {"optimizer.foreach": True})


def _buckets(measured: Measured, facts: Facts) -> Iterator[Candidate]:
    """DDP's own bucket size, in place of the script's, if a step waits for communication."""
    account = measured.known("account")
    if len(facts.ddp) != 1 or account is None:
        return
    if not account.window_ns or account.share("exposed_communication_ns") < LEAST_GAIN:
        return
    wrapped = facts.ddp[0]
    size = wrapped.bucket_cap_bytes
    if size is not None and size != _BUCKET_MIB * 2**20 and not wrapped.bucket_caps_bytes:
        yield _candidate(wrapped.where, {"ddp.bucket_cap_mb": float(_BUCKET_MIB)})


def _compiled(facts: Facts) -> Iterator[Candidate]:
    """A model that is not compiled, where this machine has the compiler that torch.compile calls."""
    variable, names = _COMPILERS.get(_kind(facts), ("", ()))
    named = os.environ.get(variable)
    if facts.compiled is None and any(shutil.which(name) for name in ([named] if named else names)):
        yield _candidate(None, {"compile.model": True})


def _sharding(facts: Facts) -> Iterator[Candidate]:
    """Units of fully_shard that stay gathered between their passes, or are gathered further ahead."""
    units = [fsdp for fsdp in facts.fsdp if fsdp.version == 2 and fsdp.mesh]
    if any(fsdp.reshard_after_forward for fsdp in units):
        where = units[0].where if len(units) == 1 else None
        yield _candidate(where, {"fsdp.reshard_after_forward": False}, "fsdp.reshard_after_forward")
    if sum(fsdp.units for fsdp in units) <= _PREFETCH:
        return
    ahead: dict[str, Value] = {
        f"fsdp.{direction}_prefetch": _PREFETCH
        for direction in ("forward", "backward")
        if max(getattr(fsdp, f"{direction}_prefetch_depth") for fsdp in units) < _PREFETCH
    }
    if ahead:
        yield _candidate(None, ahead, "fsdp.prefetch")


def _narrow_sharding(facts: Facts) -> Iterator[Candidate]:
    """Units of fully_shard that communicate in 16 bits."""
    units = [fsdp for fsdp in facts.fsdp if fsdp.version == 2 and fsdp.mesh]
    if units and all(fsdp.parameter_dtype in (None, "float32") for fsdp in units):
        yield _candidate(None, {"fsdp.param_dtype": "bf16"}, "fsdp.dtype")
    if units and all(fsdp.reduce_dtype in (None, "float32") for fsdp in units):
        yield _candidate(None, {"fsdp.reduce_dtype": "bf16"}, "fsdp.dtype")


def _candidate(where: str | None, settings: Mapping[str, Value], subject: str = "") -> Candidate:
    return unpredicted_candidate(settings_at(where, settings), subject)

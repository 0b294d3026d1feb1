"""Settings that often pay and that nothing predicts for this run: they are tried last, if time is left.

Each is one that its recording shows room for: a loader that steps wait for, more threads or fewer than the cores of a
rank, an optimizer of torch that updates tensors one by one, DDP that copies gradients into buckets, and on GPUs what
libraries leave off by default.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dptune.advice import Change, Location
from dptune.knobs import Value, knob
from dptune.measured import Measured
from dptune.runfile.facts import Facts
from dptune.tune.candidate import LEAST_GAIN, Candidate

_WORKERS = (1, 2, 4)


def unpredicted(measured: Measured, facts: Sequence[Facts]) -> Iterator[Candidate]:
    """The candidates, those that keep training results the same first. None without a recording's facts."""
    if not facts:
        return
    first = facts[0]
    yield from _loader(measured, first)
    yield from _threads(first, len({rank.local_rank for rank in facts}))
    yield from _optimizer(first)
    if len(first.ddp) == 1:
        yield _candidate(first.ddp[0].where, {"ddp.gradient_as_bucket_view": True})
    if first.device is not None and first.device.kind == "cuda":
        yield _candidate(None, {"cudnn.benchmark": True})
        yield _candidate(None, {"env.PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
        yield _candidate(None, {"precision.float32_matmul": "high"})
        yield _candidate(None, {"precision.autocast": "bf16"})


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
    if facts.device is not None and facts.device.kind == "cuda":
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


def _candidate(where: str | None, settings: dict[str, Value]) -> Candidate:
    changes = tuple(Change(knob=name, now=None, then=then, at=Location.parse(where)) for name, then in settings.items())
    name, then = next(iter(settings.items()))
    family = name if name.startswith("env.") else name.partition(".")[0]
    return Candidate(
        name=f"{name}={str(then).lower() if isinstance(then, bool) else then}",
        changes=changes,
        title="not predicted",
        numerics="changes" if any(knob(each).numerics == "changes" for each in settings) else "same",
        subjects=frozenset({family}),
    )

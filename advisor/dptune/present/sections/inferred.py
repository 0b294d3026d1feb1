"""What wraps, updates and feeds the model, as inferred from a trace that dptune did not record."""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import CONFIDENCES, Report
from dptune.knobs.optimizer import WITH_FOREACH
from dptune.measured import InferredBatch, InferredBuckets, InferredFacts, short_name
from dptune.present.amounts import data, several
from dptune.present.lines import Line, heading, wrapped
from dptune.present.visible import visible
from dptune.runfile.communication import DdpFacts, FsdpFacts
from dptune.runfile.facts import OptimizerFacts
from dptune.runfile.loader import LoaderFacts

_DTYPES = "optimizers.dtypes"  # which has a row of its own
_LABEL = 20  # of the longest label, and two blanks
_MOST_BUCKETS = 8


def inferred(report: Report, width: int) -> Iterator[Line]:
    """One row for each part that the trace shows, or shows not to be there; nothing for a recording."""
    found = report.measured.known("inferred")
    if found is None or not found.confidence:
        return
    yield from heading(f"Inferred from the trace of rank {found.facts.rank}", width)
    for part, record, text in _rows(found):
        label = f"  {part:<{_LABEL}}"
        yield from wrapped(f"{text} ({_least(found, record)} confidence)", width, label, " " * len(label))
        if record == "ddp" and found.buckets is not None:
            label = f"  {'DDP buckets':<{_LABEL}}"
            yield from wrapped(_buckets(found.buckets), width, label, " " * len(label))
    if found.batch is not None:
        label = f"  {'batch':<{_LABEL}}"
        yield from wrapped(_batch(found.batch), width, label, " " * len(label))
    for trait in found.traits:
        label = f"  {trait.name:<{_LABEL}}"
        yield from wrapped(f"{trait.value} ({trait.confidence} confidence)", width, label, " " * len(label))
    words = (
        "Rules use these facts instead of recorded ones. The confidence of a recommendation is never higher than that "
        "of the facts it uses."
    )
    yield from wrapped(words, width, "  ", role="dim")


def _least(found: InferredFacts, record: str) -> str:
    """How sure the least sure part of a record is."""
    parts = (name for name in found.confidence if name.startswith(f"{record}.") and name != _DTYPES)
    names = [name for name in found.confidence if name == record] + list(parts)
    return min((found.confidence[name] for name in names), key=CONFIDENCES.index)


def _buckets(buckets: InferredBuckets) -> str:
    """`3 gradients in 2 buckets: 1.55-1.56 MiB, 4.0-6.0 KiB, by the grids of the kernels that copy gradients (...)`."""
    bounds = list(zip(buckets.low_bytes, buckets.high_bytes, strict=True))
    listed = ", ".join(_between(low, high) for low, high in bounds[:_MOST_BUCKETS])
    more = ", ..." if len(bounds) > _MOST_BUCKETS else ""
    what = f"{several(sum(buckets.gradients), 'gradient')} in {several(len(bounds), 'bucket')}: {listed}{more}"
    return f"{what}, by the grids of the kernels that copy gradients ({buckets.confidence} confidence)"


def _between(low: int, high: int) -> str:
    """Both bounds of a size, one number where they are written alike."""
    return data(low) if data(low) == data(high) else f"{data(low)} to {data(high)}"


def _batch(batch: InferredBatch) -> str:
    """`32 samples per rank and backward pass (medium confidence). From: loss: 32 rows`."""
    tokens = f" of {batch.length:,} tokens" if batch.length else ""
    what = f"{several(batch.samples, 'sample')}{tokens} per rank and backward pass"
    return f"{what} ({batch.confidence} confidence). From {'; '.join(batch.sources)}"


def _rows(found: InferredFacts) -> Iterator[tuple[str, str, str]]:
    facts, known = found.facts, found.confidence
    if "ddp" in known:
        yield "DDP", "ddp", _ddp(facts.ddp[0]) if facts.ddp else "none"
    if "fsdp" in known:
        yield "FSDP", "fsdp", _fsdp(facts.fsdp[0]) if facts.fsdp else "none"
    if "optimizers" in known:
        yield "optimizer", "optimizers", "; ".join(map(_optimizer, facts.optimizers)) or "none"
    if _DTYPES in known:
        yield "parameters", _DTYPES, " and ".join(facts.optimizers[0].dtypes)
    if "loaders" in known:
        yield "DataLoader", "loaders", _loader(facts.loaders[0]) if facts.loaders else "none"
    if "grad_scaler" in known:
        yield "GradScaler", "grad_scaler", "yes" if facts.grad_scaler else "none"
    if "autocast" in known:
        yield "autocast", "autocast", (facts.autocast or "none").rpartition(":")[2]
    if "compiled" in known:
        yield "torch.compile", "compiled", "yes" if facts.compiled else "none"
    if "environment" in known:
        yield "debug options", "environment", ", ".join(map(visible, facts.debug_switches)) or "none"
    if "world_size" in known:
        yield "ranks", "world_size", "1 (no communication in the trace)"


def _ddp(ddp: DdpFacts) -> str:
    parts = []
    if sizes := ddp.rebuilt_bucket_sizes:
        listed = ", ".join(data(size) for size in sizes[:_MOST_BUCKETS])
        more = ", ..." if len(sizes) > _MOST_BUCKETS else ""
        gradients = f"{several(ddp.parameter_tensors, 'gradient')} in " if ddp.parameter_tensors else ""
        parts.append(f"{gradients}{several(len(sizes), 'bucket')}: {listed}{more}")
    else:
        parts.append("yes")
    if ddp.comm_hook:
        parts.append(f"communication hook: {ddp.comm_hook}")
    flags = ("gradient_as_bucket_view", "find_unused_parameters", "broadcast_buffers")
    parts += [f"{name}={value}" for name in flags if (value := getattr(ddp, name)) is not None]
    return "; ".join(parts)


def _fsdp(fsdp: FsdpFacts) -> str:
    kind = "fully_shard" if fsdp.version == 2 else "FullyShardedDataParallel"
    resharded = "" if fsdp.reshard_after_forward is None else f"; reshard_after_forward={fsdp.reshard_after_forward}"
    return kind + (f", {several(fsdp.units, 'unit')}" if fsdp.units else "") + resharded


def _optimizer(optimizer: OptimizerFacts) -> str:
    named = "fused" in optimizer.name.lower()  # FusedAdam
    how = "fused" if optimizer.fused and not named else "foreach" if optimizer.foreach else ""
    name = short_name(visible(optimizer.name))
    if optimizer.foreach is False and not how:
        how = f"one tensor at a time{' (foreach=False)' if name in WITH_FOREACH else ''}"
    return ", ".join(filter(None, (name, how)))


def _loader(loader: LoaderFacts) -> str:
    workers = "no workers" if loader.num_workers == 0 else "with workers"
    return f"{workers}, pinned memory" if loader.pins else workers

"""All facts that can be inferred of one rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np

from dptune.advice import Confidence
from dptune.measure.communication.calls import Call
from dptune.measure.communication.purposes import GRADIENTS, SHARDING, issuers, purposes
from dptune.measure.device.matmul import device_of
from dptune.measure.efficiency.source import Source
from dptune.measure.inferred.absent import absent
from dptune.measure.inferred.batches import batch
from dptune.measure.inferred.buckets import copied_buckets
from dptune.measure.inferred.evaluating import dropouts_off
from dptune.measure.inferred.hosts import HostEvents
from dptune.measure.inferred.loaders import loaders
from dptune.measure.inferred.precision import autocast
from dptune.measure.inferred.recomputing import recomputed
from dptune.measure.inferred.replicas import replicas
from dptune.measure.inferred.shards import shards
from dptune.measure.inferred.switches import switches
from dptune.measure.inferred.traits import traits
from dptune.measure.inferred.updates import updates
from dptune.measure.views import RankView
from dptune.measured import AccumulationFigures, InferredBatch, InferredFacts
from dptune.runfile.facts import DeviceFacts, Facts

_NO_PASSES = "the trace does not show where gradients are accumulated"
_NO_SHAPES = "no operator input sizes: set record_shapes=True"
_NO_BATCH = "no operator shows the batch size, or operators disagree"
_NONE_AVERAGE = "the trace shows no backward pass that averages gradients"


def inferred_facts(
    view: RankView, calls: Sequence[Call], world_size: int | None, source: Source | str
) -> InferredFacts:
    """What the trace of a rank says of facts that a recording would have; `calls` are its collectives in steps.

    `source` is the trace that has sizes of operator inputs, or why there is none. The trace has steps.
    """
    host = HostEvents(view)
    issued = _issued(view, calls)
    facts = Facts(view.rank, world_size=world_size or 1, backend=view.trace.distributed.backend, ended="")
    confidence: dict[str, Confidence] = {"world_size": "medium"} if world_size is None and host.alone else {}
    wrapped, sharded, updated = replicas(host, issued.buckets, issued.sent), shards(host), updates(host)
    passes, _ = host.passes(np.empty(0, dtype=np.int64))
    optimizers = [optimizer for found in updated if found.name == "optimizers" for optimizer in found.value]
    lacking = absent(host, [ddp for found in wrapped for ddp in found.value], optimizers, passes)
    precise = autocast(host, optimizers, sharded=not sharded or bool(sharded[0].value))
    for found in (*wrapped, *sharded, *updated, *precise, *loaders(host), *switches(host), *lacking):
        setattr(facts, found.name, found.value)
        confidence[found.name] = found.confidence
        confidence |= {f"{found.name}.{part}": sure for part, sure in found.parts.items()}
    if (device := _device(view)) is not None:
        facts.device, confidence["device"] = device, "high"
    taken = None if isinstance(source, str) else batch(HostEvents(source.view), source.tokens)
    sized = "ddp" not in confidence or "ddp.rebuilt_bucket_sizes" in confidence
    buckets = None if sized else copied_buckets(host, [row for row, _ in issued.buckets])
    again = recomputed(host)
    return InferredFacts(
        facts=facts,
        confidence=confidence,
        batch=taken,
        buckets=buckets,
        recomputed_share=again.share if again is not None and again.by_checkpoints else 0.0,
        dropouts_off=0.0 if isinstance(source, str) else dropouts_off(HostEvents(source.view)),
        traits=list(traits(host, recomputed=again)),
    )


def inferred_world_size(view: RankView) -> int | None:
    """World size 1 if the trace shows forward passes and no communication; None if it may be larger."""
    return 1 if HostEvents(view).alone else None


def inferred_samples(
    view: RankView,
    calls: Sequence[Call],
    replicas: int | None,
    taken: InferredBatch | None,
    passes: int | None,
    *,
    sized: bool,
) -> tuple[int | None, str]:
    """Samples of a step over all ranks, or why the trace does not show them; `passes` are those of a step.

    `sized`: whether the trace has sizes of operator inputs. `replicas` of the model take samples of
    their own where all of them average their gradients.
    """
    if taken is None:
        return None, _NO_BATCH if sized else _NO_SHAPES
    if taken.confidence == "low":
        return None, f"uncertain: only one indication (batch {taken.samples:,}), see `--section inferred`"
    if not passes:
        return None, _NO_PASSES
    if not replicas:
        return None, "the number of ranks, or of replicas of the model, is not known"
    if replicas > 1:
        sizes = {call.group_size for _, call in _issued(view, calls).reduced}
        groups = {group.size for group in view.trace.distributed.groups.values()}
        if not sizes or not sizes <= {replicas, None} or (None in sizes and not groups <= {replicas}):
            return None, "the trace does not show that all ranks average gradients, each of samples of its own"
    return taken.samples * passes * replicas, ""


def inferred_accumulation(view: RankView, calls: Sequence[Call], world_size: int | None) -> AccumulationFigures:
    """Backward passes of a step as the trace shows them: those in which autograd adds gradients to parameters."""
    host = HostEvents(view)
    issued = _issued(view, calls)
    passes, synchronised = host.passes(np.array([row for row, _ in issued.reduced], dtype=np.int64))
    every = (round(median(passes)) or None) if passes else None
    missing = {} if every else {"backwards_per_step": _NO_PASSES}
    held = None
    if world_size == 1:
        missing["synchronised_backwards_per_step"] = "a single process averages no gradients"
    elif not every or not issued.reduced:
        missing["synchronised_backwards_per_step"] = _NONE_AVERAGE
    else:
        held = round(median(synchronised))
    return AccumulationFigures(backwards_per_step=every, synchronised_backwards_per_step=held, missing=missing)


@dataclass(frozen=True)
class _Issued:
    """Collectives with the row of the host's call that issued each, in order of time.

    `reduced`: those that average gradients, of DDP or FSDP; `buckets`: the all-reduces among them; `sent`: broadcasts.
    """

    reduced: list[tuple[int, Call]]
    sent: list[tuple[int, Call]]

    @property
    def buckets(self) -> list[tuple[int, Call]]:
        return [(row, call) for row, call in self.reduced if call.kind == "all_reduce"]


def _issued(view: RankView, calls: Sequence[Call]) -> _Issued:
    columns = view.columns
    by_row = {call.row: call for call in calls}
    reduced, sent = [], []
    for device in view.devices:
        issued_by = issuers(view, device)
        known = np.flatnonzero(np.isin(device.operations.rows, list(by_row)) & (issued_by >= 0))
        rows, issued_by = device.operations.rows[known], issued_by[known]
        meant = purposes(columns, issued_by).tolist()
        for row, issuer, purpose in zip(rows.tolist(), issued_by.tolist(), meant, strict=True):
            call = by_row[row]
            if (call.kind, purpose) in (("all_reduce", GRADIENTS), ("reduce_scatter", SHARDING)):
                reduced.append((issuer, call))
            elif call.kind == "broadcast":
                sent.append((issuer, call))
    in_time = partial(sorted, key=lambda pair: int(columns.ts_ns[pair[0]]))
    return _Issued(in_time(reduced), in_time(sent))


def _device(view: RankView) -> DeviceFacts | None:
    """The only device that the trace computes on, if it lists it."""
    used = {device.operations.device for device in view.devices if not device.operations.on_cpu}
    device = device_of(view)
    if len(used) != 1 or device is None or used != {f"cuda:{device.index}"}:
        return None
    capability = None if device.compute_major is None else f"{device.compute_major}.{device.compute_minor or 0}"
    return DeviceFacts(
        kind="cuda",
        name=device.name or None,
        index=device.index,
        compute_capability=capability,
        memory_bytes=device.memory_bytes,
    )

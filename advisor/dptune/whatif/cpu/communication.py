"""Changes of what is communicated, and when: buckets, passes that communicate nothing, and hooks on what is sent."""

from __future__ import annotations

from dataclasses import replace
from itertools import repeat
from math import isfinite

from dptune.knobs import Value
from dptune.measured import Missing
from dptune.whatif.cpu.buckets import DEFAULT_CAP_BYTES, MIB, Caps, assign
from dptune.whatif.cpu.model import RankStep, StepModel

_POWERSGD = "powersgd"
_HALVED, _FLOAT_BYTES = "float32", 4
# What gloo takes for a float beyond half of the time of a 32-bit one (torch 2.13, two ranks on one host, messages of 1
# and 4 MB: 1.0 to 1.4 ns of fp16, up to 0.5 of bf16).
ADDING_NS = {"fp16": 1.0}
# What a hook in Python takes for each bucket, with its casts and what follows the collective (torch 2.13, gloo, buckets
# of 20 and 40 kB: 66 to 106 us in one process, 84 to 192 between two on one host).
HOOK_NS = 100e3
# What the next collective of its lane waits besides: the backend's thread runs the end of the hook first, in Python
# (five recordings of 40 and 60 buckets of 37 to 50 KiB over 200 Mbit/s, on two machines: 100 to 460 us; of one bucket
# none).
HOOK_ENDS_NS = 350e3
# What PowerSGD of rank 1 computes for each matrix that it compresses, and for each byte of all gradients (torch 2.13,
# one core, eight models of 1 to 34 MB in 2 to 100 matrices: 0.6 to 1.7 times that, and 2.6 for matrices of 16 MB).
MATRIX_NS, COMPRESSED_NS = 50e3, 0.4


def bucket_cap(model: StepModel, value: Value) -> StepModel:
    """Buckets of so many MiB, but for the first; None as torch has them."""
    return _with(model, Caps.of(None if value is None else float(value)))


def bucket_caps(model: StepModel, value: Value) -> StepModel:
    """Buckets of these MiB, the last size for all that follow."""
    return _with(model, Caps.of(each_mb=[float(part) for part in str(value).split(",")]))


def accepted(model: StepModel, caps: Caps) -> bool:
    """Whether torch takes buckets of these sizes."""
    return max(caps.bytes) >= model.least_cap_bytes


def _with(model: StepModel, caps: Caps) -> StepModel:
    if not accepted(model, caps):
        least = f"{model.least_cap_bytes / MIB:g} MiB"
        raise Missing(f"the module is compiled: torch's DDPOptimizer refuses buckets below {least}")
    return replace(model, caps=caps)


def first_bucket(model: StepModel, value: Value) -> StepModel:
    """A first bucket of so many MiB, where the others are as torch has them."""
    *first, rest = model.caps.bytes
    if len(first) != 1 or rest != DEFAULT_CAP_BYTES:
        raise Missing("bucket_cap_mb is set, so DDP uses no separate size for the first bucket")
    return replace(model, caps=Caps.of(first_bytes=int(float(value or 0) * MIB)))


def no_sync(model: StepModel, value: Value) -> StepModel:
    """All passes but the last communicate nothing; or each as the last one does."""
    quiet = model.quiet_times

    def of(step: RankStep) -> RankStep:
        *before, last = step.passes
        if not last.ready_ns:
            raise Missing("the last backward pass of a step does not communicate")
        if value:
            silent = (pass_.silent().scaled(quiet if pass_.ready_ns else 1.0) for pass_ in before)
            return replace(step, passes=(*silent, last))
        communicating = (
            pass_ if pass_.ready_ns else pass_.scaled(1 / quiet).communicating_as(last) for pass_ in before
        )
        return replace(step, passes=(*communicating, last))

    steps = {rank: [of(step) for step in steps] for rank, steps in model.steps.items()}
    return _sending(model, steps) if model.buffers_ns else replace(model, steps=steps)


def sends(step: RankStep) -> list[bool]:
    """Of each pass whether buffers are sent before it."""
    return [bool(pass_.ready_ns) for pass_ in (step.passes[-1], *step.passes[:-1])]


def _sending(model: StepModel, steps: dict[int, list[RankStep]]) -> StepModel:
    """Buffers are sent before each forward pass that follows one that communicates its gradients, and no other.

    The first pass of a step follows the last one of the step before.
    """

    def of(rank: int, before: RankStep, after: RankStep) -> RankStep:
        ns = model.buffers_ns.get(rank, 0.0)
        more = [(now - was) * ns for was, now in zip(sends(before), sends(after), strict=True)]
        passes = [
            replace(pass_, forward_ns=max(0.0, pass_.forward_ns + ns), sent_ns=max(0.0, pass_.sent_ns + ns))
            for pass_, ns in zip(after.passes, more, strict=True)
        ]
        return replace(after, passes=tuple(passes))

    moved = {rank: [*map(of, repeat(rank), model.steps[rank], step)] for rank, step in steps.items()}
    was, now = (sum(sends(next(iter(by_rank.values()))[0])) for by_rank in (model.steps, steps))
    others_ns = {rank: ns * now / was for rank, ns in model.others_ns.items()}
    return replace(model, steps=moved, others=round(model.others * now / was), others_ns=others_ns)


def without_buffers(model: StepModel) -> StepModel:
    """The model whose forward passes send no buffers; as it is where what they take is not known."""
    if not model.buffers_ns:
        return model

    def of(rank: int, step: RankStep) -> RankStep:
        pairs = zip(step.passes, (sent * model.buffers_ns.get(rank, 0.0) for sent in sends(step)), strict=True)
        each = (replace(pass_, forward_ns=max(0.0, pass_.forward_ns - ns), sent_ns=0.0) for pass_, ns in pairs)
        return replace(step, passes=tuple(each))

    steps = {rank: [of(rank, step) for step in steps] for rank, steps in model.steps.items()}
    return replace(model, steps=steps, others=0, others_ns={}, buffers_ns={})


def comm_hook(model: StepModel, value: Value) -> StepModel:
    """Half of the bytes, a cast each way, which reads and writes as a copy back does, and Python for each bucket.

    The backend adds 16-bit floats on a core, and those of fp16 one by one.
    """
    if value == "none":
        return model
    if value == _POWERSGD:
        return _power_sgd(model)
    cast, adding = model.copy_ns_per_byte, ADDING_NS.get(str(value), 0.0) / _FLOAT_BYTES
    if not cast:
        raise Missing("gradients are bucket views, so the time for copies and casts is unknown")
    if model.dtype not in (_HALVED, None):
        raise Missing(f"gradients are {model.dtype}: the hook can be predicted for {_HALVED} only")
    return replace(
        model,
        wire_share=0.5 + (adding * model.link.bytes_per_ns if isfinite(model.link.bytes_per_ns) else 0.0),
        prepare_ns_per_byte=cast,
        hook_ns=model.hook_times * HOOK_NS,
        link=replace(model.link, alpha_ns=model.link.alpha_ns + _following(model) * model.hook_times * HOOK_ENDS_NS),
        copy_ns_per_byte=model.copy_ns_per_byte + cast,
    )


def _following(model: StepModel) -> float:
    """The part of the buckets whose collective follows another in its lane."""
    buckets = len(assign(model.gradient_bytes, model.caps))
    return max(0, buckets - model.link.lanes) / buckets


def _power_sgd(model: StepModel) -> StepModel:
    """Three small collectives in place of all buckets, once every gradient is there, and compressing before them."""
    total = sum(model.gradient_bytes)
    if model.low_rank is None:
        raise Missing("gradient shapes are unknown: record again")
    if model.dtype not in (_HALVED, None):
        raise Missing(f"gradients are {model.dtype}: the hook can be predicted for {_HALVED} only")
    compressing = MATRIX_NS * model.low_rank.matrices + COMPRESSED_NS * total
    return replace(
        model,
        caps=Caps((total + 1,)),
        link=replace(model.link, alpha_ns=3 * model.link.alpha_ns),
        wire_share=model.low_rank.sent_bytes / total,
        prepare_ns_per_byte=model.hook_times * compressing / total,
    )

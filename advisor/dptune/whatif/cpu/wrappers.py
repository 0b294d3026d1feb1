"""DistributedDataParallel in place of fully_shard, and the reverse: the same gradients, in buckets or in units.

What the other wrapper's own code takes is not in a recording; these constants stand for it. They are of torch 2.13, two
ranks on a core each, where calling an operator took `USUAL_CALL_NS`; where it takes longer, so does that code. Three
models of 6 to 288 tensors and 4.2 to 6.9 MB in 3 to 8 units were recorded with both wrappers: collectives of units took
1.1 to 5.9 ms besides, other hooks 2 to 13 ms of a pass, the optimizer 12 to 217 ms on shards and 13 to 48 ms on whole
tensors. What is computed after a wait for a collective took longer as well: its caches are cold. All of it is rough, so
a prediction has the interval of other values, too.

Collectives of units block the script, so ranks meet at each of them, and each time the one that computed longer counts
(`model.apart_share`). With DDP they meet once, and a recording of it shows none of this. Of two ranks, the one that
arrives late at a gather has it half a transfer later (`units`), so it is late at the next, too, until a reduction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from dptune.knobs import Value
from dptune.knobs.patched import FSDP
from dptune.measured import Missing
from dptune.whatif.cpu.buckets import Caps
from dptune.whatif.cpu.communication import without_buffers
from dptune.whatif.cpu.hybrid import check_one_group
from dptune.whatif.cpu.model import Pass, RankStep, StepModel
from dptune.whatif.cpu.unit_changes import gathering_again, grouped, sharding_of, without
from dptune.whatif.cpu.units import CALL_NS, Sharding, UnitCall, element_bytes

# Of a collective of a unit, besides `CALL_NS`: for each tensor and byte of the unit its copies and views; a reduction
# has gradients to add up and to divide, too.
TENSOR_NS, BYTE_NS, REDUCED_BYTE_NS = 35e3, 0.5, 0.8
# For each sharded tensor, in a forward pass its hooks and its first use, in a backward pass what its hooks take beyond
# those of DDP; times what is computed otherwise.
_HOOKS_NS, _FIRST_USE_NS, COLD = (27e3, 8e3), 60e3, 1.12
DISPATCH_NS = 560e3  # what the optimizer takes for each sharded tensor beyond a whole one: DTensor dispatches in Python
UPDATE_NS = 5.0  # for each element that it updates
# Of DDP: a hook for each tensor, starting a bucket's all-reduce, copying a byte back, passes beside all-reduces, and
# those beside compute (the usual values of recordings of DDP).
_DDP_HOOK_NS, _START_NS, _COPY_NS, _SLOWDOWN, _BESIDE, _LANES = 10e3, 150e3, 0.15, 1.3, 1.2, 2
_PIECES = 8  # of a unit's gradients: they become ready one after the other
_LEAST_COMPUTE = 0.25  # of a pass, that is no hook of sharded modules
_LEAST_AFTER = 0.25  # of what follows a backward pass: loss, logging and zeroing gradients stay


def wrapper(model: StepModel, value: Value) -> StepModel:
    """The model with the other wrapper; as it is where that is its own. Units come from `fsdp.units` then."""
    if (value == FSDP) == (model.sharding is not None):
        return model
    if value == FSDP:
        raise Missing("FSDP needs a number of units: set fsdp.units too")
    return _replicated(model)


def _replicated(model: StepModel) -> StepModel:
    """The gradients of units in buckets of DDP's default sizes."""
    sharding, ranks = sharding_of(model), len(model.steps)
    check_one_group(model)
    if element_bytes(sharding.parameter_dtype) < element_bytes(None):
        raise Missing("units compute in 16 bits: the recording does not show how long that takes in fp32, as DDP would")
    if any(call.direction == "forward" and call.kind == "reduce" for call in _last(model).calls):
        raise Missing("gradients are reduced in forward passes")
    reductions = [call for call in _last(model).calls if call.kind == "reduce"]
    if not reductions:
        raise Missing("the last backward pass of a step does not reduce gradients")
    gradient_bytes = [call.message_bytes / _PIECES for call in reductions for _ in range(_PIECES)]
    times = element_bytes(None) / element_bytes(sharding.reduce_dtype or sharding.parameter_dtype)
    hooks_ns = model.wrapper_times * _DDP_HOOK_NS * sharding.tensors

    def of(pass_: Pass) -> Pass:
        plain = without(pass_, lambda call: call.kind == "gather")
        own = [call for call in plain.calls if call.kind == "reduce"]
        plain = without(plain, lambda call: True)
        spared_ns = sharding.hooks_ns[0] + model.wrapper_times * _FIRST_USE_NS * sharding.tensors, sharding.hooks_ns[1]
        forward_ns, backward_ns = (
            max(_LEAST_COMPUTE * whole_ns, (whole_ns - pass_ns) / COLD)
            for whole_ns, pass_ns in zip((plain.forward_ns, plain.backward_ns), spared_ns, strict=True)
        )
        if not own:
            return plain.lasting(forward_ns, backward_ns)
        ends = list(accumulate((max(0.0, call.at_ns - call.around_ns) for call in own), max))
        starts = [0.0, *ends[:-1]]
        ready_ns = tuple(
            start + (end - start) * (piece + 1) / _PIECES
            for start, end in zip(starts, ends, strict=True)
            for piece in range(_PIECES)
        )
        reducing = replace(plain, backward_ns=max(plain.backward_ns, ready_ns[-1]), ready_ns=ready_ns)
        return replace(reducing.lasting(forward_ns, backward_ns + hooks_ns), hooks_ns=hooks_ns)

    elements = sum(call.message_bytes for call in reductions) * times / element_bytes(None)
    more_ns = UPDATE_NS * elements * (1 - 1 / ranks) - model.wrapper_times * DISPATCH_NS * sharding.tensors
    return replace(
        model,
        steps=_updating(model.each_pass(of), more_ns),
        gradient_bytes=tuple(round(size * times) for size in gradient_bytes),
        caps=Caps.of(),
        link=replace(model.link, lanes=_LANES),
        start_ns=_START_NS,
        copy_ns_per_byte=_COPY_NS,
        slowdown=_SLOWDOWN,
        beside=_BESIDE,
        dtype="float32",
        sharding=None,
    )


def sharded(model: StepModel, count: int) -> StepModel:
    """The gradients of a replicated model in so many units of about equal bytes, whose buffers nothing sends."""
    model = without_buffers(model)
    tensors, ranks = len(model.gradient_bytes), len(model.steps)
    if not 0 < count <= tensors:
        raise Missing(f"the model has {tensors} trained tensors, so 1 to {tensors} units")
    group = grouped([float(size) for size in model.gradient_bytes], count)
    names = tuple(f"unit {place + 1}" for place in range(count))
    elements = sum(model.gradient_bytes) / element_bytes(model.dtype)
    more_ns = model.wrapper_times * DISPATCH_NS * tensors - UPDATE_NS * elements * (1 - 1 / ranks)

    def of(pass_: Pass) -> Pass:
        last = _last(model)
        ready_ns = pass_.ready_ns or tuple(
            moment * pass_.backward_ns / last.backward_ns if last.backward_ns else 0.0 for moment in last.ready_ns
        )
        return _in_units(pass_, ready_ns, group, model)

    return replace(
        model,
        steps=apart(_updating(model.each_pass(of), more_ns), model.apart_share),
        gradient_bytes=(),
        caps=Caps.of(),
        link=replace(model.link, lanes=1, crowding=()),
        start_ns=0.0,
        copy_ns_per_byte=0.0,
        slowdown=1.0,
        beside=1.0,
        sharding=Sharding(names, tensors=tensors),
    )


def _in_units(pass_: Pass, ready_ns: Sequence[float], group: Sequence[int], model: StepModel) -> Pass:
    """A pass of a replicated model with its gradients in units: the first group to be ready is the last unit.

    A unit starts its forward pass at the part of it that mirrors where its backward pass ends.
    """
    silent, tensors = pass_.silent(), model.wrapper_times * len(group)
    plain = silent.lasting(
        COLD * silent.forward_ns + tensors * (_HOOKS_NS[0] + _FIRST_USE_NS),
        COLD * silent.backward_ns + tensors * _HOOKS_NS[1],
    )
    shorter = plain.backward_ns / pass_.backward_ns if pass_.backward_ns else 1.0
    units = max(group) + 1
    found = []
    for at in range(units):
        places = [place for place, number in enumerate(group) if number == at]
        size = float(sum(model.gradient_bytes[place] for place in places))
        hook_ns = model.wrapper_times * (CALL_NS + TENSOR_NS * len(places))
        ends_ns = max(ready_ns[place] for place in places) * shorter
        reduction = UnitCall(
            ends_ns, "reduce", "backward", units - 1 - at, size, around_ns=hook_ns + REDUCED_BYTE_NS * size
        )
        found.append((reduction, ends_ns, hook_ns + BYTE_NS * size))
    gathers, reductions, ahead_ns = [], [], 0.0
    for reduction, ends_ns, around_ns in reversed(found):
        ahead_ns += around_ns
        starts_ns = plain.forward_ns * max(0.0, 1 - ends_ns / plain.backward_ns) if plain.backward_ns else 0.0
        at_ns = starts_ns + ahead_ns
        gathers.append(replace(reduction, kind="gather", direction="forward", at_ns=at_ns, around_ns=around_ns))
    behind_ns = 0.0
    for reduction, ends_ns, _ in found if pass_.ready_ns else []:
        behind_ns += reduction.around_ns
        reductions.append(replace(reduction, at_ns=ends_ns + behind_ns))
    both = replace(plain, forward_ns=plain.forward_ns + ahead_ns, backward_ns=plain.backward_ns + behind_ns)
    return gathering_again(replace(both, calls=(*gathers, *reductions)))


def _last(model: StepModel) -> Pass:
    """The last pass of a step, which synchronizes gradients."""
    return next(iter(model.steps.values()))[0].passes[-1]


def _updating(steps: dict[int, list[RankStep]], more_ns: float) -> dict[int, list[RankStep]]:
    """The steps whose optimizer takes so much more, or less."""
    return {
        rank: [replace(step, after_ns=max(_LEAST_AFTER * step.after_ns, step.after_ns + more_ns)) for step in of_rank]
        for rank, of_rank in steps.items()
    }


def apart(steps: Mapping[int, Sequence[RankStep]], share: float) -> dict[int, list[RankStep]]:
    """The steps with every second rank computing that share longer than the others: in each step the other half.

    The turn changes where the last backward pass ends. On average no rank is slower.
    """

    def of(step: RankStep, turn: int) -> RankStep:
        now, then = 1 + share * (turn % 2 - 0.5), 1 - share * (turn % 2 - 0.5)
        return RankStep(tuple(pass_.scaled(now) for pass_ in step.passes), step.after_ns * then)

    return {
        rank: [of(step, place + number) for number, step in enumerate(of_rank)]
        for place, (rank, of_rank) in enumerate(steps.items())
    }

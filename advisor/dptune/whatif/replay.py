"""A step model -> how long its steps take: the passes of all ranks, and the buckets between them, in order of time.

A bucket goes out once its last gradient is ready on every rank; starting its exchange takes the thread that computes a
while, which delays all gradients after it. After its own compute a rank waits for the buckets in order, and copies each
back; then it goes on with the optimizer. So the ranks meet in each step, and who computes longer makes all wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from statistics import median

from dptune.whatif.buckets import assign
from dptune.whatif.model import Pass, StepModel
from dptune.whatif.wire import ends

_ROUNDS = 3  # times the recorded steps are gone through; the first is only to find the ranks' lead over each other


def durations(model: StepModel) -> dict[int, list[float]]:
    """By rank how long each step takes, ns, in the order of the recorded steps."""
    buckets = assign(model.gradient_bytes, model.caps)
    sizes = [float(sum(model.gradient_bytes[place] for place in bucket)) for bucket in buckets]
    last = [max(bucket) for bucket in buckets]
    clock = dict.fromkeys(model.steps, 0.0)
    supplied = dict(clock)  # until when the loader has been asked for batches
    found: dict[int, list[float]] = {rank: [] for rank in model.steps}
    count = min(len(steps) for steps in model.steps.values())
    for turn in range(_ROUNDS * count):
        begun = dict(clock)
        steps = {rank: model.steps[rank][turn % count] for rank in model.steps}
        for number in range(max(len(step.passes) for step in steps.values())):
            passes = {rank: step.passes[number] for rank, step in steps.items() if number < len(step.passes)}
            starts = {rank: _started(rank, one, clock[rank], supplied, model) for rank, one in passes.items()}
            _through(passes, starts, clock, last, sizes, model)
        for rank, step in steps.items():
            clock[rank] += step.after_ns
            if turn >= (_ROUNDS - 1) * count:
                found[rank].append(clock[rank] - begun[rank])
    return found


def step_ns(model: StepModel) -> float:
    """The median over ranks of each rank's median step, as the measured step time."""
    return median(median(steps) for steps in durations(model).values())


def _started(rank: int, one: Pass, now: float, supplied: dict[int, float], model: StepModel) -> float:
    """When a backward pass begins: after the wait for its batch, and the forward pass."""
    every = model.supply_ns.get(rank)
    if every is None:
        return now + one.loader_ns + one.forward_ns
    supplied[rank] = max(supplied[rank] + every, now - every)  # workers do not prepare far ahead
    return max(now, supplied[rank]) + one.forward_ns


def _through(
    passes: dict[int, Pass],
    starts: dict[int, float],
    clock: dict[int, float],
    last: Sequence[int],
    sizes: Sequence[float],
    model: StepModel,
) -> None:
    """Move the clocks to the end of one pass of every rank."""
    exchanging = {rank: one for rank, one in passes.items() if one.ready_ns}
    if not exchanging:
        for rank, one in passes.items():
            clock[rank] = starts[rank] + one.backward_ns
        return
    delays = list(accumulate(model.start_ns + model.prepare_ns_per_byte * size for size in sizes))
    ready = [
        max(starts[rank] + one.ready_ns[place] for rank, one in exchanging.items()) + delay
        for place, delay in zip(last, delays, strict=True)
    ]
    base = min(ready)
    wire = [model.wire_share * size for size in sizes]
    ended = ends([time - base for time in ready], wire, model.link)
    for rank, one in passes.items():
        now = starts[rank] + one.backward_ns + (delays[-1] if rank in exchanging else 0.0)
        if rank in exchanging:
            for end, size in zip(ended, sizes, strict=True):
                now = max(now, base + end) + model.copy_ns_per_byte * size
        clock[rank] = now

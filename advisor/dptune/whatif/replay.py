"""A step model -> how long its steps take: the passes of all ranks, and the buckets between them, in order of time.

A bucket goes out once its last gradient is ready on every rank; starting its exchange takes the thread that computes a
while, which delays all gradients after it, and as long as one is in flight backward passes compute more slowly, and it
moves more slowly while ranks compute. After
its own compute a rank waits for the buckets in order, and copies each back; then it goes on with the optimizer. So the
ranks meet in each step, and who computes longer makes all wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import median

from dptune.whatif.buckets import assign
from dptune.whatif.model import Pass, StepModel
from dptune.whatif.wire import Wire

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
    return max(now, supplied[rank]) + model.restart_ns + one.forward_ns


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
    computing = {rank: _computing(one, starts[rank], last, delays) for rank, one in exchanging.items()}
    base = min(starts[rank] for rank in exchanging)
    ended = _exchanged([*computing.values()], base, [model.wire_share * size for size in sizes], model)
    for rank, one in passes.items():
        if rank not in exchanging:
            clock[rank] = starts[rank] + one.backward_ns
            continue
        now = computing[rank].reached[-1]
        for end, size in zip(ended, sizes, strict=True):
            now = max(now, end) + model.copy_ns_per_byte * size
        clock[rank] = now


@dataclass
class _Computing:
    """The compute of one rank's backward pass: what is left until each bucket is ready, and until the pass is over, ns.

    `since` is when it goes on, `reached` when it came to each of them.
    """

    since: float
    left: list[float]
    reached: list[float]

    def upcoming(self, slowdown: float) -> float:
        """When it comes to the next of them, computing so many times as slowly from `since` on."""
        at = len(self.reached)
        return self.since + self.left[at] * slowdown if at < len(self.left) else float("inf")

    def move(self, to: float, slowdown: float) -> None:
        """Go on to a moment, at most the upcoming one."""
        at = len(self.reached)
        if at < len(self.left) and to >= self.since:
            there = self.upcoming(slowdown) <= to
            self.left[at] = max(0.0, self.left[at] - (to - self.since) / slowdown)
            self.since = to
            if there:
                self.reached.append(to)


def _computing(one: Pass, start: float, last: Sequence[int], delays: Sequence[float]) -> _Computing:
    moments = [one.ready_ns[place] + delay for place, delay in zip(last, delays, strict=True)]
    in_order = [0.0, *accumulate([*moments, one.backward_ns + delays[-1]], max)]
    return _Computing(start, [after - before for before, after in pairwise(in_order)], [])


def _exchanged(ranks: Sequence[_Computing], base: float, sizes: Sequence[float], model: StepModel) -> list[float]:
    """When each bucket has been exchanged. The ranks, too, are brought to the end of their compute."""
    wire, ended = Wire(model.link, base), [0.0] * len(sizes)
    asked = over = 0
    while over < len(sizes) or any(len(rank.reached) < len(rank.left) for rank in ranks):
        slowdown = model.slowdown if wire.busy else 1.0
        computing = sum(len(rank.reached) < len(rank.left) for rank in ranks) / len(ranks)
        speed = 1 / (1 + (model.beside - 1) * computing)
        now = min(wire.upcoming(speed), *(rank.upcoming(slowdown) for rank in ranks))
        for rank in ranks:
            rank.move(now, slowdown)
        for number in wire.move(now, speed):
            ended[number] = now
            over += 1
        while asked < len(sizes) and all(len(rank.reached) > asked for rank in ranks):
            wire.ask(asked, sizes[asked])
            asked += 1
    return ended

"""A step model -> how long its steps take: the passes of all ranks, and the buckets between them, in order of time.

A bucket goes out once its last gradient is ready on every rank; starting its collective takes the thread that computes
a while, which delays all gradients after it, and as long as one is in flight backward passes compute more slowly, and
it moves more slowly while ranks compute. After its own compute a rank waits for the buckets in order, and copies each
back; then it goes on with the optimizer. So the ranks meet in each step, and who computes longer makes all wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import inf
from statistics import median

from dptune.whatif.cpu.blocking import through
from dptune.whatif.cpu.buckets import assign
from dptune.whatif.cpu.model import Pass, RankStep, StepModel
from dptune.whatif.cpu.shared_link import Wire

_ROUNDS = 3  # times the recorded steps are gone through at most; the first is only to find the lead of the ranks
_SAME_NS = 1e-3  # a round that begins with the lead of the one before, by so much, takes what that took


def durations(model: StepModel) -> dict[int, list[float]]:
    """By rank how long each step takes, ns, in the order of the recorded steps."""
    buckets = assign(model.gradient_bytes, model.caps) if model.sharding is None else []
    sizes = [float(sum(model.gradient_bytes[place] for place in bucket)) for bucket in buckets]
    last = [max(bucket) for bucket in buckets]
    clock = dict.fromkeys(model.steps, 0.0)
    supplied = dict.fromkeys(model.supply_ns, 0.0)  # until when the loader has been asked for batches
    found: dict[int, list[float]] = {}
    lead = _lead(clock, supplied)
    for _ in range(_ROUNDS):
        found, before = {rank: [] for rank in model.steps}, lead
        for number in range(min(len(steps) for steps in model.steps.values())):
            begun = dict(clock)
            _step({rank: steps[number] for rank, steps in model.steps.items()}, clock, supplied, last, sizes, model)
            for rank, durations_ns in found.items():
                durations_ns.append(clock[rank] - begun[rank])
        lead = _lead(clock, supplied)
        if max(abs(now - then) for now, then in zip(lead, before, strict=True)) <= _SAME_NS:
            break
    return found


def _lead(clock: Mapping[int, float], supplied: Mapping[int, float]) -> list[float]:
    """Where the ranks and their loaders are, seen from the first rank."""
    first, *_ = clock.values()
    return [moment - first for moment in (*clock.values(), *supplied.values())]


def _step(
    steps: Mapping[int, RankStep],
    clock: dict[int, float],
    supplied: dict[int, float],
    last: Sequence[int],
    sizes: Sequence[float],
    model: StepModel,
) -> None:
    """Move the clocks to the end of one step of every rank."""
    for number in range(max(len(step.passes) for step in steps.values())):
        passes = {rank: step.passes[number] for rank, step in steps.items() if number < len(step.passes)}
        starts = {rank: _started(rank, pass_, clock[rank], supplied, model) for rank, pass_ in passes.items()}
        if model.sharding is not None:
            through(passes, starts, clock, model)
            continue
        starts = {rank: start + passes[rank].forward_ns for rank, start in starts.items()}
        _through(passes, starts, clock, last, sizes, model)
    for rank, step in steps.items():
        clock[rank] += step.after_ns


def step_ns(model: StepModel) -> float:
    """The median over ranks of each rank's median step, as the measured step time."""
    return median(median(steps) for steps in durations(model).values())


def _started(rank: int, pass_: Pass, now: float, supplied: dict[int, float], model: StepModel) -> float:
    """When a forward pass starts: after the wait for its batch."""
    every = model.supply_ns.get(rank)
    if every is None:
        return now + pass_.loader_ns
    supplied[rank] = max(supplied[rank] + every, now - every)  # workers do not prepare far ahead
    return max(now, supplied[rank]) + model.restart_ns


def _through(
    passes: dict[int, Pass],
    starts: dict[int, float],
    clock: dict[int, float],
    last: Sequence[int],
    sizes: Sequence[float],
    model: StepModel,
) -> None:
    """Move the clocks to the end of one pass of every rank."""
    communicating = {rank: pass_ for rank, pass_ in passes.items() if pass_.ready_ns}
    if not communicating:
        for rank, pass_ in passes.items():
            clock[rank] = starts[rank] + pass_.backward_ns
        return
    delays = list(accumulate(model.start_ns + model.hook_ns + model.prepare_ns_per_byte * size for size in sizes))
    computing = {rank: _computing(pass_, starts[rank], last, delays) for rank, pass_ in communicating.items()}
    base = min(starts[rank] for rank in communicating)
    ended = _communicated([*computing.values()], base, [model.wire_share * size for size in sizes], model)
    for rank, pass_ in passes.items():
        if rank not in communicating:
            clock[rank] = starts[rank] + pass_.backward_ns
            continue
        now = computing[rank].reached[-1]
        for end, size in zip(ended, sizes, strict=True):
            now = max(now, end) + model.copy_ns_per_byte * size
        clock[rank] = now


@dataclass(slots=True)
class _Computing:
    """The compute of one rank's backward pass: what is left until each bucket is ready, and until the pass is over, ns.

    `since` is when it goes on, `reached` when it came to each of them; `next` when it comes to the next, if nothing
    else happens before.
    """

    since: float
    left: list[float]
    reached: list[float]
    next: float = inf

    @property
    def over(self) -> bool:
        return len(self.reached) == len(self.left)

    def upcoming(self, slowdown: float) -> float:
        """When it comes to the next of them, computing so many times as slowly from `since` on; it is not over."""
        self.next = self.since + self.left[len(self.reached)] * slowdown
        return self.next

    def move(self, to: float, slowdown: float) -> bool:
        """Go on to a moment, at most the upcoming one, which has been asked for. Whether it is there."""
        if to < self.since:
            return False
        if self.next <= to:
            self.since = to
            self.reached.append(to)
            return True
        at = len(self.reached)
        self.left[at] = max(0.0, self.left[at] - (to - self.since) / slowdown)
        self.since = to
        return False


def _computing(pass_: Pass, start: float, last: Sequence[int], delays: Sequence[float]) -> _Computing:
    moments = [pass_.ready_ns[place] + delay for place, delay in zip(last, delays, strict=True)]
    in_order = [0.0, *accumulate([*moments, pass_.backward_ns + delays[-1]], max)]
    return _Computing(start, [after - before for before, after in pairwise(in_order)], [])


def _communicated(ranks: Sequence[_Computing], base: float, sizes: Sequence[float], model: StepModel) -> list[float]:
    """When each bucket has been communicated. The ranks, too, are brought to the end of their compute."""
    wire, ended = Wire(model.link, base), [0.0] * len(sizes)
    asked = over = 0
    computing = [rank for rank in ranks if not rank.over]
    while over < len(sizes) or computing:
        slowdown = model.slowdown if wire.busy else 1.0
        speed = 1 / (model.communication_times * (1 + (model.beside - 1) * (len(computing) / len(ranks))))
        now = min([wire.upcoming(speed), *[rank.upcoming(slowdown) for rank in computing]])
        there = [rank.move(now, slowdown) for rank in computing]
        for number in wire.move(now):
            ended[number] = now
            over += 1
        if True in there:
            computing = [rank for rank in computing if not rank.over]
            while asked < len(sizes) and all(len(rank.reached) > asked for rank in ranks):
                wire.ask(asked, sizes[asked])
                asked += 1
    return ended

"""Ranks whose times cannot be of one synchronous job: a clock jumps, counts another unit, or the times are another's.

Traces: no rank leaves a symmetric collective before the last has come. Each collective thus bounds by how much one
clock is ahead of another, from both sides, exactly. Where no constant satisfies all bounds of a run, a clock did not
run on evenly, and no length of a step is known. Between ranks of six public runs the bounds leave at least 0.01 ms;
clocks that drift apart move by far less than SLACK_NS while steps are traced. Only collectives with every rank of their
group count, matched by number or in order: of others, the calls of two ranks may not be of one collective.

Untraced steps: ranks that reduce gradients in each step end it between the same two collectives, at most the
longest step apart; they may be apart by as much when the window begins, so that their leads differ by two steps at
most. The median over the second half of the window does not see what a rank does alone between steps (a checkpoint):
the others wait for it in the next step. In 91 recordings of this project it is below one step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, combinations
from math import prod
from statistics import median

from dptune.measure.communication.matching import MatchedCollective
from dptune.measured import Loss, in_ms
from dptune.runfile.facts import Facts
from dptune.runfile.window import Window

SLACK_NS = 1_000_000
MOST_STEPS = 2  # that a rank may lead by, of its longest
_FEW_RANKS = 16
_LEAST_STEPS = 8  # without the profiler: the median is over half of them


def uneven_clocks(collectives: Iterable[MatchedCollective]) -> dict[int, Loss]:
    """By rank the clocks that no constant shift sets right. Of two ranks it is not known which; the second is named."""
    bounds: dict[tuple[int, int], list[int]] = {}
    for collective in collectives:
        if not collective.splits or collective.basis == "shift":
            continue
        for first, other in _pairs(len(collective.ranks)):
            pair = int(collective.ranks[first]), int(collective.ranks[other])
            least = int(collective.start_ns[other] - collective.end_ns[first])
            most = int(collective.end_ns[other] - collective.start_ns[first])
            low, high = bounds.get(pair, (least, most))
            bounds[pair] = [max(low, least), min(high, most)]
    off = {pair: low - high for pair, (low, high) in bounds.items() if low - high > SLACK_NS}
    return {
        rank: Loss(
            code="clock-uneven",
            fatal=True,
            text=f"its clock shifts by at least {in_ms(by_ns)} ms relative to that of rank {other} between "
            "their collectives, so no step can be timed",
        )
        for rank, other, by_ns in _culprits(off)
    }


def _of(ranks: Sequence[int]) -> Iterable[tuple[int, int]]:
    return ((ranks[first], ranks[other]) for first, other in _pairs(len(ranks)))


def _pairs(ranks: int) -> Iterable[tuple[int, int]]:
    """All pairs of a few ranks; of many each with the first, which takes a time that grows with their number only."""
    return combinations(range(ranks), 2) if ranks <= _FEW_RANKS else ((0, other) for other in range(1, ranks))


def uneven_steps(facts: Mapping[int, Facts]) -> dict[int, Loss]:
    """By rank the times without the profiler that no rank can have which reduces gradients with the others."""
    windows = {
        rank: window
        for rank, rank_facts in facts.items()
        if (window := rank_facts.window("untraced")) is not None and _synchronous(rank_facts, window, len(facts))
    }
    if len(windows) < 2:
        return {}
    begin = max(window.first_step for window in windows.values())
    end = min(window.first_step + window.steps for window in windows.values())
    if end - begin < _LEAST_STEPS:
        return {}
    times = {
        rank: window.step_durations_ns[begin - window.first_step : end - window.first_step]
        for rank, window in windows.items()
    }
    off = {
        (first, other): abs(lead)
        for first, other in _of(sorted(times))
        if abs(lead := _lead_ns(times[first], times[other])) > MOST_STEPS * _longest_ns(times[first], times[other])
    }
    return {
        rank: Loss(
            code="steps-asynchronous",
            fatal=True,
            text=f"its steps {begin} to {end - 1} took {in_ms(sum(times[rank]))} ms without the profiler, those "
            f"of rank {other} {in_ms(sum(times[other]))} ms. Ranks that reduce gradients together take the same "
            "time, so these times are wrong or of another run",
        )
        for rank, other, _ in _culprits(off)
    }


def _synchronous(facts: Facts, window: Window, ranks: int) -> bool:
    """Whether each step of the window waits for all ranks, and its times say when they do."""
    timed = window.device_durations_ns is not None or (facts.device is not None and facts.device.kind == "cpu")
    sizes = [len(ddp.ranks) or ranks for ddp in facts.ddp]  # older recordings do not list them
    sizes += [prod(fsdp.mesh) if fsdp.mesh else ranks for fsdp in facts.fsdp]
    together = ranks == facts.world_size and bool(sizes) and max(sizes) >= ranks
    return timed and together and not facts.averages_models and not any(window.unsynced_updates)


def _lead_ns(first: Sequence[int], other: Sequence[int]) -> float:
    """How much later than the first the other ends its steps, since the end of the first step."""
    apart = [theirs - ours for ours, theirs in zip(accumulate(first[1:]), accumulate(other[1:]), strict=True)]
    return median(apart[len(apart) // 2 :])


def _longest_ns(first: Sequence[int], other: Sequence[int]) -> int:
    """The longest step of the rank that takes less time: that of the other may be what is wrong."""
    return max(min(first, other, key=sum))


def _culprits(off: dict[tuple[int, int], int] | dict[tuple[int, int], float]) -> list[tuple[int, int, float]]:
    """The fewest ranks that explain all pairs that do not fit, each with the rank it fits least and by how much."""
    left, found = dict(off), list[tuple[int, int, float]]()
    while left:
        counts: dict[int, int] = {}
        for pair in left:
            for rank in pair:
                counts[rank] = counts.get(rank, 0) + 1
        rank = max(counts, key=lambda counted_rank: (counts[counted_rank], counted_rank))
        pair = max((pair for pair in left if rank in pair), key=left.__getitem__)
        found.append((rank, pair[0] if pair[1] == rank else pair[1], left[pair]))
        left = {pair: by_ns for pair, by_ns in left.items() if rank not in pair}
    return found

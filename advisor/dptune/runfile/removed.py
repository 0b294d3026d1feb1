"""What a step saves without some work, given the time that each rank spends on it.

Ranks synchronize in every step, so the busiest one sets the step time. Without the work each rank is busy for less
time, and the step is shorter by the difference of the longest busy times before and after. The difference lies between
the shortest and longest time that any rank spends on the work, so at least the shortest is saved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import mean, median, quantiles, stdev
from typing import NamedTuple

from dptune.runfile.periods import periods

_HARDLY = 0.1  # of the longest work of a step: a step with less has hardly any
_Z = 1.645  # of a normal distribution: 5 % lie beyond on either side


class Share(NamedTuple):
    """A share of the steps, with its 90 % interval."""

    least: float
    likely: float
    most: float


def saved_share(
    spent: Mapping[int, Share], busy_ns: Mapping[int, Sequence[float]] | None, step_ns: float, ranks: int
) -> Share:
    """The share of a step that is saved without work that takes these shares of the steps of each rank.

    `busy_ns` is how long each rank is busy in each step, None if not known, and of no use if ranks timed different
    numbers of steps; `ranks` is their number: those that are not in `spent` do none of the work.
    """
    shares = [*spent.values(), *[Share(0.0, 0.0, 0.0)] * (ranks - len(spent))]
    least, likely, most = (min(column) for column in zip(*shares, strict=True))
    most = max(share.most for share in shares)
    if busy_ns is not None and ranks > 1 and len(busy_ns) == ranks and len(set(map(len, busy_ns.values()))) == 1:
        found = [_shorter({rank: rank_share.likely for rank, rank_share in spent.items()}, busy_ns, step_ns)]
        found.append(_shorter({rank: rank_share.least for rank, rank_share in spent.items()}, busy_ns, step_ns))
        likely, least = max(likely, median(found[0])), max(least, _low(found[1]))
    elif ranks > 1:
        likely = mean((likely, max(rank_share.likely for rank_share in shares)))
    return Share(least, min(likely, most), most)


def saved_share_of_steps(
    spent_ns: Mapping[int, Sequence[int]],
    durations_ns: Mapping[int, Sequence[int]],
    busy_ns: Mapping[int, Sequence[float]] | None,
    *,
    in_turn: bool = False,
) -> Share:
    """The share of all steps that is saved without work that was timed in each step, by rank, in the same steps.

    The interval includes the sampling error of the mean of these steps. `in_turn`: ranks may do the work one after
    another, so that at most the sum of their times is saved.
    """
    total_ns = max(sum(rank_durations_ns) for rank_durations_ns in durations_ns.values())
    by_step = list(zip(*spent_ns.values(), strict=True))
    lowest = [float(min(work_ns_by_rank)) for work_ns_by_rank in by_step]
    highest = [float(sum(work_ns_by_rank) if in_turn else max(work_ns_by_rank)) for work_ns_by_rank in by_step]
    known = lowest
    if busy_ns is not None and set(busy_ns) == set(spent_ns):
        known = [
            max(busy) - max(ns - work_ns for ns, work_ns in zip(busy, spent, strict=True))
            for busy, spent in zip(zip(*(busy_ns[rank] for rank in spent_ns), strict=True), by_step, strict=True)
        ]
    least = max(0.0, sum(known) - _error(known)) / total_ns
    likely = (sum(known) + sum(highest)) / 2 / total_ns
    return Share(least, min(1.0, likely), min(1.0, (sum(highest) + _error(highest)) / total_ns))


def _shorter(shares: Mapping[int, float], busy_ns: Mapping[int, Sequence[float]], step_ns: float) -> list[float]:
    """For each step, the reduction of the longest busy time as a share of the step time."""
    found = []
    for busy in zip(*busy_ns.values(), strict=True):
        of_rank = dict(zip(busy_ns, busy, strict=True))
        left = max(ns - shares.get(rank, 0.0) * step_ns for rank, ns in of_rank.items())
        found.append((max(busy) - left) / step_ns)
    return found


def _low(values: Sequence[float]) -> float:
    """The lower quartile, because the busiest rank differs between steps."""
    return quantiles(values, n=4)[0] if len(values) > 1 else values[0]


def _error(each_ns: Sequence[float]) -> float:
    """The sampling error of the sum over the steps.

    Work in every N-th step varies by its amounts, and by how many such steps a window of this length holds. Otherwise
    steps count as independent.
    """
    if len(each_ns) < 2 or max(each_ns) <= 0:
        return 0.0
    working = [at for at, ns in enumerate(each_ns) if ns > _HARDLY * max(each_ns)]
    found = periods(working, len(each_ns))
    if len(found) != 1 or set(found[0].steps) != set(working):
        return _Z * stdev(each_ns) * sqrt(len(each_ns))
    amounts = [each_ns[at] for at in working]
    by_number = abs(len(each_ns) / found[0].every - len(working)) * mean(amounts)
    return _Z * stdev(amounts) * sqrt(len(amounts)) + by_number

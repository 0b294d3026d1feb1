"""What hosts do before each call that launches something: work that could be spread, and how much it varies by chance.

Hosts of equal work take longer or less from step to step. A rank that is no longer late varies as before, and ranks
that share their work evenly still wait for the one that takes longest by chance.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from dptune.whatif.gpu.columns import Floats

_Key = tuple[int, int]  # step, the number of a call in it
_USUAL = 25  # percentile of what a rank takes for a call: two ranks that take turns are late in half of the steps
_QUARTILES = (25, 75)
_LEAST, _SPREADS = 1.1, 3.0  # times the usual; how many spreads beyond it are work of that step alone


@dataclass(frozen=True)
class HostWork:
    """Changed so that the rank `late` works as the others do, or so that all work alike if it is None."""

    late: int | None = None

    def factors(self, spent: Mapping[_Key, Mapping[int, float]]) -> dict[_Key, dict[int, float]]:
        """By call and rank how many times as long the host takes. `spent`: how long it took.

        What a rank takes for a call in the mean step becomes that of the others, or of all. What it takes beyond the
        usual in a single step, by more than it varies, is gone, or is spread over the ranks.
        """
        once = self._once(spent)
        means: dict[int, dict[int, float]] = defaultdict(dict)  # by call and rank
        for (call, rank), several in _by_call(spent, once).items():
            means[call][rank] = fmean(several)
        found: dict[_Key, dict[int, float]] = {}
        for key, of_ranks in spent.items():
            known = means[key[1]]
            wanted = self._wanted(known)
            if wanted is None:
                continue
            extra = {rank: once.get((*key, rank), 0.0) for rank in of_ranks}
            shared = fmean(extra.values()) if self.late is None else 0.0
            found[key] = {
                rank: ((ns - extra[rank]) * (wanted / known[rank] if known[rank] else 1.0) + shared) / ns
                for rank, ns in of_ranks.items()
                if ns and self.late in (None, rank)
            }
        return found

    def _wanted(self, means: Mapping[int, float]) -> float | None:
        """What each rank is to take in the mean step; None where only one has the call."""
        if len(means) < 2:
            return None
        if self.late is None:
            return fmean(means.values())
        return median(ns for rank, ns in means.items() if rank != self.late)

    def _once(self, spent: Mapping[_Key, Mapping[int, float]]) -> dict[tuple[int, int, int], float]:
        """By step, call and rank what is beyond what the rank usually takes for the call."""
        several = _by_call(spent, {})
        percentiles = _percentiles(list(several.values()), (_USUAL, *_QUARTILES))
        usual = dict(zip(several, percentiles[:, 0].tolist(), strict=True))
        limit = max(_LEAST, 1 + _SPREADS * (_spread(percentiles[:, 1:].tolist()) - 1))
        return {
            (step, call, rank): ns - usual[call, rank]
            for (step, call), of_ranks in spent.items()
            for rank, ns in of_ranks.items()
            if ns > limit * usual[call, rank]
        }


def _by_call(
    spent: Mapping[_Key, Mapping[int, float]], once: Mapping[tuple[int, int, int], float]
) -> dict[tuple[int, int], list[float]]:
    """By call and rank what it takes in each step, without that of single steps.

    The first step counts only for calls that no other has: before its first call nothing was recorded.
    """
    first = min((step for step, _ in spent), default=0)
    found: dict[tuple[int, int], list[float]] = defaultdict(list)
    for (step, call), of_ranks in sorted(spent.items(), reverse=True):
        for rank, ns in of_ranks.items():
            if step != first or (call, rank) not in found:
                found[call, rank].append(ns - once.get((step, call, rank), 0.0))
    return found


def _percentiles(several: Sequence[Sequence[float]], wanted: Sequence[float]) -> Floats:
    """By list, the percentiles of its numbers: those of lists of the same length at once."""
    found = np.zeros((len(several), len(wanted)))
    places: dict[int, list[int]] = defaultdict(list)
    for place, each in enumerate(several):
        places[len(each)].append(place)
    for alike in places.values():
        found[alike] = np.percentile([several[place] for place in alike], wanted, axis=1).T
    return found


def _spread(quartiles: Sequence[Sequence[float]]) -> float:
    """The upper quartile over the lower one of what a rank takes for a call: the median of all calls."""
    return float(median([upper / lower for lower, upper in quartiles if lower] or [1.0]))

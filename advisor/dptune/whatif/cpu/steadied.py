"""Steps without the time that other processes took: each stretch of compute is at most so many times its median."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from statistics import median

from dptune.whatif.cpu.model import Pass, RankStep

# A thread that waits for its collectives loses its core to whatever else runs, at other places in each step: in a
# recording beside other jobs every third stretch of 2 ms took 5 to 20 ms, and traced steps 1.3 times untraced ones.
_MOST = 2.0


def steadied(steps: Sequence[RankStep]) -> list[RankStep]:
    """Steps with the same passes, all of which issue the same collectives."""
    found = [[stretches(pass_) for pass_ in step.passes] for step in steps]
    limits = [[_MOST * median(times) for times in zip(*passes, strict=True)] for passes in zip(*found, strict=True)]
    after_ns = _MOST * median(step.after_ns for step in steps)
    return [
        RankStep(
            tuple(map(_limited, step.passes, of_step, limits)),
            min(step.after_ns, after_ns),
        )
        for step, of_step in zip(steps, found, strict=True)
    ]


def stretches(pass_: Pass) -> list[float]:
    """Compute of a pass before each collective, and after the last one of forward and of backward."""
    found = []
    for direction, whole_ns in (("forward", pass_.forward_ns), ("backward", pass_.backward_ns)):
        at_ns = [0.0, *(call.at_ns for call in pass_.calls if call.direction == direction), whole_ns]
        found += [after - before for before, after in pairwise(at_ns)]
    return found


def lasting(pass_: Pass, times: Sequence[float]) -> Pass:
    """The pass with other stretches of compute."""
    forward = 1 + sum(call.direction == "forward" for call in pass_.calls)
    ends = [*accumulate(times[:forward]), *accumulate(times[forward:])]
    at_ns = [*ends[: forward - 1], *ends[forward:-1]]
    ordered = sorted(pass_.calls, key=lambda call: call.direction == "backward")
    calls = (replace(call, at_ns=at) for call, at in zip(ordered, at_ns, strict=True))
    return replace(pass_, forward_ns=ends[forward - 1], backward_ns=ends[-1], calls=tuple(calls))


def _limited(pass_: Pass, times: Sequence[float], limits: Sequence[float]) -> Pass:
    return lasting(pass_, [min(*both) for both in zip(times, limits, strict=True)])

"""What a search will do: its candidates in their order, and how long each is likely to take."""

from __future__ import annotations

from collections.abc import Sequence

from dptune.prove.trial import Bounds
from dptune.tune import order
from dptune.tune.candidate import Candidate
from dptune.tune.result import Plan, Planned

_START_S = 6.0  # a process that imports torch and reaches its first step: 3 to 8 s where trials were measured


def trial_s(step_ns: int | None, bounds: Bounds) -> float:
    """The seconds that a trial is likely to take, from the recorded step; that of a script may start much later."""
    step_s = (step_ns or 0) / 1e9
    timed_s = min(max(bounds.steps * step_s, bounds.least_s), bounds.window_s)
    return _START_S + bounds.warmup * step_s + timed_s


def plan(candidates: Sequence[Candidate], seconds: float) -> Plan:
    """The candidates by expected gain per second of proof, with trials of so many seconds."""

    def proof_s(candidate: Candidate) -> float:
        return order.proof_s(candidate.expected, order.SPREAD, seconds)

    ordered = sorted(candidates, key=lambda candidate: candidate.expected / proof_s(candidate), reverse=True)
    return Plan(
        trial_s=seconds,
        candidates=[
            Planned(
                name=candidate.name,
                title=candidate.title,
                settings=candidate.settings,
                numerics=candidate.numerics,
                basis=candidate.basis,
                predicted_low_share=candidate.low_share,
                predicted_high_share=candidate.high_share,
                rounds=order.rounds(candidate.expected, order.SPREAD),
                seconds=proof_s(candidate),
            )
            for candidate in ordered
        ],
    )

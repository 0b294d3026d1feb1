"""Which candidates to race next: by expected gain per second of proof, given what the stack leaves to gain."""

from __future__ import annotations

from collections.abc import Sequence

from dptune.tune.candidate import Candidate
from dptune.tune.error_budget import LOOKS

SPREAD = 0.03  # of trials, until it is measured: of 32 comparisons of like sides half spread less (tests/benchmarks)
# A gain of this many times the spread of trials is found in most cases by this look.
_FOUND = tuple(zip((3.0, 1.9, 1.4), LOOKS, strict=False))


def rounds(gain: float, spread: float) -> int:
    """The rounds that are likely to show a gain, a share of the time per sample."""
    return next((look for times, look in _FOUND if gain >= times * spread), LOOKS[-1])


def proof_s(gain: float, spread: float, trial_s: float) -> float:
    """The seconds that trials of the candidate alone are likely to take."""
    return rounds(gain, spread) * trial_s


def remaining(
    candidate: Candidate, expected: float, kept: Sequence[tuple[Candidate, float]], stack_ratio: float
) -> float:
    """The share of the stack's time that it may still save.

    `expected`: the share of the original time. `kept`: the changes of the stack and the share of the original time
    that each saved; one of the same part of training may have saved the same time. `stack_ratio`: time of the stack /
    time of the original.
    """
    saved = sum(share for change, share in kept if change.subjects & candidate.subjects)
    return max(0.0, expected - saved) / max(stack_ratio, 1e-3)

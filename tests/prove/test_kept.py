"""What later reports of a run say of its proofs."""

from __future__ import annotations

from typing import Any

import pytest

from dptune.advice import Saving, Verified
from dptune.prove.earlier import against


def saving(**figures: Any) -> Saving:
    given = {"low_ms": 1, "high_ms": 2, "low_share": 0.2, "high_share": 0.4, "basis": "replayed", "how": "x"}
    return Saving(**{**given, **figures})


def verified(low: float | None, high: float | None, **figures: Any) -> Verified:
    given = {"name": "x", "changes": {}, "outcome": "better", "reason": "x", "objective": "time per sample"}
    return Verified(
        **{**given, "ratio": 0.7, "low_ratio": low, "high_ratio": high, "trials": 6, "learning": "x", **figures}
    )


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [
        (0.6, 0.8, ""),
        (0.75, 0.95, ""),  # 5 to 25 % less, of which 20 was promised
        (0.85, 0.95, "below the prediction (20 to 40 %): the prediction does not hold on this machine"),
        (0.4, 0.65, ""),
        (0.4, 0.55, "more than predicted (20 to 40 %)"),
        (None, None, ""),
    ],
)
def test_a_proof_is_set_against_the_promise(low: float | None, high: float | None, told: str) -> None:
    assert against(saving(), verified(low, high)) == told


def test_what_is_of_something_else_is_not() -> None:
    """Fast steps, or steps where each is to have more samples."""
    assert against(saving(), verified(0.85, 0.95, fast_steps=True)) == ""
    assert against(saving(samples_times=2), verified(0.85, 0.95, objective="time per step")) == ""
    assert against(saving(), verified(0.85, 0.95, objective="time per step"))


def test_an_upper_bound_that_does_not_hold_is_not_called_a_promise() -> None:
    bound = saving(basis="bound", low_share=0, high_share=0.6)
    assert against(bound, verified(0.2, 0.3)) == "more than the upper bound of 60 %"
    assert against(bound, verified(0.3, 0.5)) == ""

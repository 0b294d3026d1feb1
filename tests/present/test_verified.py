"""What was run stands beside what was promised, in text and on the screen."""

from __future__ import annotations

from typing import Any

import pytest

from dptune.advice import Report, Verified
from dptune.present.ink import paint
from dptune.present.sections import advice
from dptune.present.sections.headline import headline
from dptune.present.tui.app import ReportApp

from .test_tui import LARGE, SMALL, page_to, see


def verified(**figures: Any) -> Verified:
    given: dict[str, Any] = {
        "name": "ddp.no_sync=true",
        "advice": "DP102",
        "changes": {"ddp.no_sync": True},
        "outcome": "better",
        "reason": "the trials lie apart",
        "objective": "time per sample",
        "ratio": 0.32,
        "low_ratio": 0.30,
        "high_ratio": 0.35,
        "trials": 6,
        "learning": "alike",
    }
    return Verified(**{**given, **figures})


@pytest.fixture
def proven(report: Report) -> Report:
    other = verified(name="ddp.comm_hook=fp16", advice="", fast_steps=True, ratio=0.9, low_ratio=0.85, high_ratio=0.95)
    failing = verified(
        name="loader.num_workers=8", advice="", outcome="inconclusive", warnings=["3 of 9 trials of B came to: failed"]
    )
    return report.model_copy(update={"verified": [verified(), other, failing]})


def test_the_report_says_what_came_of_running_it(proven: Report) -> None:
    text = " ".join(paint(advice.advice(proven, 100), False).split())
    assert "Verified better: time per sample 68.0 % less (65.0 to 70.0 % less; 6 trials per side)" in text
    assert "Other verified changes" in text
    assert "ddp.comm_hook=fp16: better: time per sample of the fastest steps 10.0 % less" in text
    assert "the trials lie apart; 3 of 9 trials of B came to: failed" in text


def test_that_something_else_is_learned_is_said_beside_the_time(report: Report) -> None:
    ruined = verified(learns="other", learning="the loss of B is within 4.2 of A's", command="python other.py")
    text = " ".join(paint(advice.advice(report.model_copy(update={"verified": [ruined]}), 100), False).split())
    assert "; 6 trials per side), of `python other.py`; training results differ: the loss of B is within" in text


def test_what_to_do_next_says_what_came_of_it(proven: Report) -> None:
    """Beside the promise, at the top."""
    told = proven.model_copy(update={"headline": proven.headline.model_copy(update={"rule": "DP102"})})
    text = " ".join(paint(headline(told, 100), False).split())
    assert "Verified better: time per sample 68.0 % less" in text
    assert "Verified" not in " ".join(paint(headline(proven, 100), False).split())


@pytest.mark.parametrize("size", [SMALL, LARGE])
async def test_the_card_on_the_screen_says_it_too(proven: Report, size: tuple[int, int]) -> None:
    async with ReportApp(proven).run_test(size=size) as pilot:
        await see(pilot, "better: time per sample 68.0 % less (65.0 to 70.0 % less", "2")
        await pilot.press("end")
        await pilot.press("tab")
        await page_to(pilot, "ddp.comm_hook=fp16: better")

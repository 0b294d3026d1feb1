"""The verified saving comes before the predicted one, in text, on the screen and in HTML."""

from __future__ import annotations

from typing import Any

import pytest

from dptune.advice import Headline, Report, Verified
from dptune.advise.expected_saving import expected_saving
from dptune.present.html.advice import recommendations
from dptune.present.ink import paint
from dptune.present.sections import advice
from dptune.present.sections.headline import headline
from dptune.present.tui.app import ReportApp

from .. import reading  # noqa: TID252 - tests are no installed package
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
    assert "Verified faster: 68.0 % less time per sample (interval 65.0-70.0 %, 6 trials per side)" in text
    assert "Other verified changes" in text
    assert "ddp.comm_hook=fp16: faster: 10.0 % less time per sample of the fastest steps" in text
    assert "the trials lie apart; 3 of 9 trials of B came to: failed" in text


def test_that_something_else_is_learned_is_said_beside_the_time(report: Report) -> None:
    ruined = verified(learns="other", learning="the loss of B is within 4.2 of A's", command="python other.py")
    text = " ".join(paint(advice.advice(report.model_copy(update={"verified": [ruined]}), 100), False).split())
    assert ", 6 trials per side), of `python other.py`; training results differ: the loss of B is within" in text


def test_what_to_do_next_says_what_came_of_it(proven: Report) -> None:
    """Beside the promise, at the top."""
    told = proven.model_copy(update={"headline": proven.headline.model_copy(update={"rule": "DP102"})})
    text = " ".join(paint(headline(told, 100), False).split())
    assert "Verified faster: 68.0 % less time per sample" in text
    assert "Verified" not in " ".join(paint(headline(proven, 100), False).split())


async def test_the_card_on_the_screen_says_it_too(proven: Report) -> None:
    async with ReportApp(proven).run_test(size=SMALL) as pilot:
        for size in (SMALL, LARGE):
            await pilot.resize_terminal(*size)
            await see(pilot, "faster: 68.0 % less time per sample (interval 65.0-70.0 %", "1", "2", "home")
            await pilot.press("end")
            await pilot.press("tab")
            await page_to(pilot, "ddp.comm_hook=fp16: faster")


def test_the_verified_saving_leads_and_the_prediction_follows(proven: Report) -> None:
    text = " ".join(paint(advice.advice(proven, 100), False).split())
    card = text[text.index("DP102 no-sync") : text.index("DP401 fp32-matmul")]
    assert card.index("Verified faster: 68.0 % less time per sample") < card.index(
        "Upper bound saves up to 20.7 ms of each"
    )
    assert "Saves" not in card
    other = text[text.index("DP401 fp32-matmul") :]
    assert "Saves 4.10 to 20.7 ms of each 140.2 ms step" in other


def test_so_it_does_in_html(proven: Report) -> None:
    written = recommendations(proven, {}).body
    card = written[written.index('id="advice-DP102"') :].partition("</article>")[0]
    assert card.index("<dt>Verified</dt>") < card.index("<dt>Upper bound</dt>")
    assert "<dt>Saves</dt>" not in card


def test_next_gives_the_verified_saving_of_the_recommended_change() -> None:
    _, report = reading.sample("accumulation_without_no_sync")
    assert report.headline.next.endswith(" Verified: 34.4 % less time per sample.")
    assert "It saves" not in report.headline.next


def test_next_keeps_the_prediction_where_nothing_was_verified() -> None:
    _, report = reading.sample("tiny_buckets")
    named = next(card for card in report.advice if card.rule == report.headline.rule)
    assert isinstance(report.headline, Headline)
    assert report.headline.next.endswith(expected_saving(named, report.measured.step.time_ns))

"""One late rank, and ranks that take turns: the recordings of both, and what is predicted for them."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from dptune.commands.shared.reading import measured_of
from dptune.runfile import json_files
from dptune.runfile.facts import Facts
from dptune.whatif.predicting import Predictor

from .. import reading  # noqa: TID252 - tests are no installed package

RUNS = Path(__file__).parent / "recorded" / "runs"
LINKS = Path(__file__).parents[2] / "sample_traces" / "healthy" / "links.json"


def untraced_ms(name):
    facts = [json_files.read(path, Facts) for path in sorted((RUNS / name).glob("*.facts.json"))]
    return statistics.median(statistics.median(one.window("untraced").durations_ns) for one in facts) / 1e6


@pytest.mark.parametrize(
    ("name", "speaks", "silent"), [("late-rank", "DP701", "DP702"), ("uneven-ranks", "DP702", "DP701")]
)
def test_of_a_delay_one_rule_speaks(name, speaks, silent):
    report = reading.reported(RUNS / name)
    rules = [one.rule for one in report.advice]
    assert speaks in rules
    assert silent not in rules
    assert ("Straggler: rank" in report.headline.verdict) == (speaks == "DP701")


def test_ranks_that_take_turns_are_named_with_their_steps():
    (advice,) = [one for one in reading.reported(RUNS / "uneven-ranks").advice if one.rule == "DP702"]
    assert "rank 0 in 10, rank 1 in 10 of 20 steps" in advice.title  # each sleeps in every second step


@pytest.mark.long
def test_removing_a_stall_and_sharing_it_are_predicted_apart():
    """Without its sleep of 30 ms the mended script took what is predicted; shared, half of the sleep stays on each."""
    run, measured = measured_of([str(RUNS / "late-rank")], None, cached=False, links=LINKS)
    removed, balanced = (Predictor(run, measured)({f"straggler.{what}": True}) for what in ("removed", "balanced"))
    assert removed.low_ns <= untraced_ms("late-rank-mended") * 1e6 <= removed.high_ns
    assert (balanced.step_ns - removed.step_ns) / 1e6 == pytest.approx(15, abs=1)

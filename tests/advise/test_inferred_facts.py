"""What rules get to know of a trace that dptune did not record, and how sure their advice then is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dptune_rules
from dptune.advice import Advice
from dptune.advise.packs import LoadedRule
from dptune.advise.rule_calls import Questioner
from dptune.config import Settings
from dptune.measured import InferredFacts, Missing
from dptune.rule import Rule, RunView
from dptune.rule.recorded import WORDS
from dptune.runfile.communication import DdpFacts
from dptune.runfile.facts import Facts
from dptune.runfile.loader import LoaderFacts
from dptune.testing import measured_run

RULE = Rule(code="XX101", name="a-rule", family="batch", kind="time", summary="one", since="0.1", thresholds=())


def run_of(confidence: dict[str, str], **facts: Any) -> RunView:
    """A view of a trace with these facts inferred."""
    inferred = InferredFacts(facts=Facts(0, **facts), confidence=confidence)
    return RunView(measured_run().model_copy(update={"inferred": inferred, "missing": {}}), [])


def test_a_rule_names_what_it_cannot_do_without() -> None:
    run = run_of({"ddp": "high"}, ddp=[DdpFacts("")])
    assert run.any_facts("ddp").ddp == [DdpFacts("")]
    with pytest.raises(Missing, match="does not show the size of the buffers that DDP broadcasts"):
        run.any_facts("ddp", "ddp.buffer_bytes")
    with pytest.raises(Missing, match="does not show which DataLoader"):
        run.any_facts("loaders")
    with pytest.raises(Missing, match="needs a recording"):
        run.any_facts()


def test_of_what_is_not_there_nothing_is_missing() -> None:
    run = run_of({"ddp": "high"})
    assert run.any_facts("ddp", "ddp.buffer_bytes").ddp == []


def test_recorded_facts_have_all_names_and_are_sure() -> None:
    facts = Facts(0)
    run = RunView(measured_run(), [facts])
    assert run.any_facts("ddp", "ddp.buffer_bytes") is facts
    assert run.recorded_about("loaders") is facts
    assert run.confidence_in() == "high"


def test_a_rule_about_records_is_quiet_where_there_are_none_and_asks_for_a_recording_else() -> None:
    assert run_of({"loaders": "high"}).recorded_about("loaders") is None
    single = run_of({"loaders": "high"}, loaders=[LoaderFacts(num_workers=0)])
    assert single.recorded_about("loaders", lambda loader: loader.num_workers != 0) is None
    with pytest.raises(Missing, match="needs a recording"):
        single.recorded_about("loaders")
    with pytest.raises(Missing, match="does not show which DataLoader"):
        run_of({}).recorded_about("loaders")


@pytest.mark.parametrize(("sure", "then"), [("low", "low"), ("medium", "medium"), ("high", "high")])
def test_advice_is_no_surer_than_the_facts_it_went_by(sure: str, then: str) -> None:
    def check(run: RunView) -> Iterator[Advice]:
        run.any_facts("ddp", "ddp.buffer_bytes")
        yield Advice(
            rule="XX101", slug="a-rule", kind="time", impact="low", title="one", why="one", changes=[],
            saves=run.bound(0.0, 0.1, "one"), confidence="high", evidence=[], numerics="same", fingerprint="XX101",
        )  # fmt: skip

    run = run_of({"ddp": "high", "ddp.buffer_bytes": sure}, ddp=[DdpFacts("", buffer_bytes=8)])
    loaded = LoadedRule(RULE, check, "", "a", "a", ours=True)
    (advice,) = Questioner(run.measured, [], Settings()).ask(loaded).said
    assert advice.confidence == then


def test_every_fact_that_a_rule_asks_for_has_words() -> None:
    rules = Path(dptune_rules.__file__).parent.rglob("*.py")
    calls = [call for path in rules for call in re.findall(r"(?:any_facts|recorded_about)\(([^)]*)", path.read_text())]
    names = {name for call in calls for name in re.findall(r'"([\w.]+)"', call)}
    assert {"ddp", "frozen_norms", "optimizers.fused"} <= names
    assert names <= WORDS.keys()

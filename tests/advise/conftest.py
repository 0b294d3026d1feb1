"""Made-up runs, and rules and packs that a test makes up."""

import sys

import pytest

from dptune import testing
from dptune.advice import Advice, Change, Evidence, Saving
from dptune.advise.packs import LoadedRule, Survey
from dptune.rule import Rule


@pytest.fixture(scope="session")
def hand_made():
    return testing


@pytest.fixture
def make_measured():
    return testing.measured_run


@pytest.fixture
def make_facts():
    return testing.facts_of


def advice_of(rule="XX101", low=0.0, high=0.1, **changed):
    known = {
        "rule": rule,
        "slug": "made-up",
        "kind": "time",
        "impact": "medium",
        "title": "something costs 10 % of a step",
        "why": "it is slow.",
        "changes": [Change(knob="loader.num_workers", now=0, then=2)],
        "saves": Saving(
            low_ms=low * 10, high_ms=high * 10, low_share=low, high_share=high, basis="bound", how="made up"
        ),
        "confidence": "high",
        "evidence": [Evidence(label="figure", value=high)],
        "numerics": "same",
        "fingerprint": f"{rule}:subject",
    }
    return Advice(**{**known, **changed})


def rule_of(code="XX101", check=None, *, ours=False, **changed):
    rule = Rule(
        **{"code": code, "name": code.lower(), "family": "made", "kind": "time", "summary": "", "since": "0.1"}
        | changed
    )
    return LoadedRule(rule, check or (lambda run: iter([advice_of(code)])), "", f"made_up.{code}", "made-up 1.0", ours)


@pytest.fixture
def make_advice():
    return advice_of


@pytest.fixture
def make_rule():
    return rule_of


@pytest.fixture
def survey_of():
    return lambda *rules: Survey(list(rules), [])


@pytest.fixture
def install_pack(tmp_path, monkeypatch):
    """Install a distribution with a rule pack: files by their path, importable until the test is over."""
    made = []

    def install(name, files, entry=None):
        site = tmp_path / name
        metadata = site / f"{name}-1.0.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[dptune.rules]\n{name} = {entry or name}\n")
        for path, text in files.items():
            (site / path).parent.mkdir(parents=True, exist_ok=True)
            (site / path).write_text(text)
        monkeypatch.syspath_prepend(site)
        made.append(name)

    yield install
    for module in [module for module in sys.modules if module.partition(".")[0] in made]:
        del sys.modules[module]

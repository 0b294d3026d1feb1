from __future__ import annotations

import json
from pathlib import Path

import pytest

from dptune.advise import packs
from dptune.cli import main
from dptune.rule import Rule

INSTALLED = packs.survey()
RULES = [loaded.rule for loaded in INSTALLED.rules]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_list_names_every_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert RULES
    assert main(["rules", "list"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for rule in RULES:
        assert f"{rule.code} {rule.name}" in said
        assert rule.summary in said


def test_the_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "list", "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [one["code"] for one in said] == [rule.code for rule in RULES]
    assert {"name", "family", "kind", "summary", "thresholds", "pack"} <= set(said[0])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_every_rule_explains_itself(
    rule: Rule, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packs, "survey", lambda: INSTALLED)  # takes ten times as long as to print a rule
    assert main(["rules", "explain", rule.code.lower()]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{rule.code} {rule.name}\n")
    for title in ("What it measures", "Why it matters", "What to change", "When to leave it alone", "References"):
        assert f"\n{title}\n" in said
    for threshold in rule.thresholds:
        assert f"{threshold.name} = {threshold.default:g}" in said
    assert all(len(row) <= 80 for row in said.splitlines() if not row.startswith("    ") and "http" not in row)


def test_a_threshold_of_ones_own_is_shown_beside_dptunes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rule = next(rule for rule in RULES if rule.thresholds)
    name = rule.thresholds[0].name
    (tmp_path / "dptune.toml").write_text(f"[rules.{rule.code}]\n{name} = 0.77\n", encoding="utf-8")
    assert main(["rules", "explain", rule.code]) == 0
    assert f"{name} = 0.77 (yours; dptune's own is" in capsys.readouterr().out


def test_a_rule_that_is_ignored_is_marked_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rule = RULES[0]
    (tmp_path / "dptune.toml").write_text(f'ignore = ["{rule.code}"]\n', encoding="utf-8")
    assert main(["rules", "list"]) == 0
    assert f"{rule.name} (off)" in " ".join(capsys.readouterr().out.split())


def test_a_rule_that_is_not_there_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "explain", "DP4050"]) == 2
    assert "did you mean 'DP405'?" in capsys.readouterr().err

"""The tools of `dptune mcp` without the SDK: what they answer, refuse, and leave out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dptune.agents import answers
from dptune.agents.calls import CallError, Calls

from .. import in_process  # noqa: TID252 - tests are no installed package

SAMPLE = str(Path(__file__).parents[2] / "sample_traces" / "tiny_buckets")


def test_a_report_has_the_figures_of_the_command_and_the_next_step() -> None:
    answer = Calls().report(SAMPLE)
    whole = json.loads(in_process.dptune("report", SAMPLE, "--format", "json").stdout)
    assert {name: answer[name] for name in ("headline", "trust", "advice")} == {
        name: whole[name] for name in ("headline", "trust", "advice")
    }
    assert "measured" not in answer
    assert answer["next_step"] == whole["headline"]["next"]
    assert len(json.dumps(answer)) <= answers.MOST_CHARACTERS


def test_an_answer_is_bounded_and_shows_what_is_left_out() -> None:
    answer = answers.bounded({"advice": [{"title": "x" * 900}] * 40, "next_step": "read"})
    assert len(json.dumps(answer)) <= answers.MOST_CHARACTERS + 50
    assert len(answer["advice"]) + answer["left_out"]["advice"] == 40
    assert answer["next_step"] == "read"
    whole = answers.bounded({"text": "y" * 100_000, "next_step": "read"})
    assert len(json.dumps(whole)) <= answers.MOST_CHARACTERS
    assert "characters left out" in whole["text"]


def test_scripts_run_only_where_the_user_allowed_it() -> None:
    calls = Calls(allow_run=False)
    verify, tune = calls.verify("DP101", SAMPLE), calls.tune_start(["train.py", "--epochs", "1"], time_limit="5m")
    assert verify["command"] == f"dptune verify {SAMPLE} --advice DP101 --time-limit 20m --format json -q"
    assert tune["command"].endswith(" train.py --epochs 1")
    assert all("--allow-run" in answer["next_step"] for answer in (verify, tune))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda calls: calls.report("--patch"), "cannot begin with '-'"),
        (lambda calls: calls.what_if(["-o"]), "cannot begin with '-'"),
        (lambda calls: calls.tune_start(["--yes", "train.py"]), "cannot begin with '-'"),
        (lambda calls: calls.tune_start(), "give either `command`"),
        (lambda calls: calls.tune_status("tune-9"), "no search is called tune-9"),
        (lambda calls: calls.report("nowhere.json"), "nowhere.json"),
    ],
)
def test_refusals(call, message: str) -> None:
    with pytest.raises(CallError) as refused:
        call(Calls(allow_run=True))
    assert message in str(refused.value)


def test_the_skill_names_commands_that_exist() -> None:
    import re

    from dptune.cli import VERBS

    printed = in_process.dptune("skill").stdout
    assert printed.startswith("---\nname: dptune\n")
    assert set(re.findall(r"`dptune ([a-z]+)", printed)) <= {*VERBS}


def test_a_search_is_started_followed_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    calls = Calls(allow_run=True)
    started = calls.tune_start(["nowhere.py"])
    assert started["search"] == "tune-1"
    calls._tunings["tune-1"].process.wait(60)
    status = calls.tune_status("tune-1")
    assert (status["running"], status["next_step"]) == (False, "Ask tune_result.")
    assert any("nowhere.py" in line for line in status["progress"])
    with pytest.raises(CallError, match="tune-1 ended without a result"):
        calls.tune_result("tune-1")
    calls.close()

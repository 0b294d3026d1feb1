"""The tools of `dptune mcp` without the SDK: what they answer, refuse, and leave out."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pydantic_core
import pytest

from dptune.agents import answers
from dptune.agents.calls import Calls, _Tuning
from dptune.agents.processes import CallError, Processes
from dptune.tune.result import Tuning

from .. import in_process, reading  # noqa: TID252 - tests are no installed package

RECORDED = Path(__file__).parents[1] / "rules" / "recorded" / "runs" / "unused-gradients"  # a small one
SAMPLE = str(RECORDED)
WIDE = ((1, 2), (2, 5000), (3, 3))  # the rule's last digit, and its places


@pytest.mark.usefixtures("here")
def test_a_report_has_the_figures_of_the_command_and_the_next_step() -> None:
    answer = Calls().report(SAMPLE)
    whole = json.loads(in_process.dptune("report", SAMPLE, "--no-cache", "--format", "json").stdout)
    assert {name: answer[name] for name in ("headline", "trust", "advice")} == {
        name: whole[name] for name in ("headline", "trust", "advice")
    }
    assert "measured" not in answer
    assert answer["next_step"] == whole["headline"]["next"]
    assert len(json.dumps(answer)) <= answers.MOST_CHARACTERS


def characters(answer: answers.Answer) -> int:
    """The length of the text that a client gets, as the SDK makes it."""
    return len(pydantic_core.to_json(answer, indent=2).decode())


def test_an_answer_is_bounded_and_shows_what_is_left_out() -> None:
    answer = answers.bounded({"advice": [{"title": "x" * 900}] * 40, "next_step": "read"})
    assert answers.MOST_CHARACTERS - 1500 < characters(answer) <= answers.MOST_CHARACTERS
    assert len(answer["advice"]) + answer["left_out"]["advice"] == 40
    assert answer["next_step"] == "read"
    whole = answers.bounded({"text": "y" * 100_000, "next_step": "read"})
    assert characters(whole) <= answers.MOST_CHARACTERS
    assert "characters left out" in whole["text"]
    small = {"advice": [], "next_step": "read"}
    assert answers.bounded(small) == small


def test_the_list_that_takes_the_room_is_cut_wherever_it_is() -> None:
    advice = [{"rule": f"DP10{number}", "places": [f"rank {rank}" for rank in range(many)]} for number, many in WIDE]
    answer = answers.bounded({"advice": advice, "trust": {"level": "sound"}})
    assert [each["rule"] for each in answer["advice"]] == ["DP101", "DP102", "DP103"]
    assert [len(each["places"]) for each in answer["advice"]][::2] == [2, 3]
    assert list(answer["left_out"]) == ["advice.1.places"]
    assert len(answer["advice"][1]["places"]) + answer["left_out"]["advice.1.places"] == 5000


def test_answers_about_a_thousand_ranks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report on two ranks in which every list of numbers and texts is a thousand entries long."""
    whole = json.loads(reading.reported(RECORDED).model_dump_json())
    monkeypatch.setattr(Processes, "output", lambda *_: json.dumps(widened(whole)))
    answer = Calls().report("run")
    assert characters(answer) <= answers.MOST_CHARACTERS
    assert (answer["headline"], answer["trust"]["level"]) == (whole["headline"], whole["trust"]["level"])
    assert [each["rule"] for each in answer["advice"]] == [each["rule"] for each in whole["advice"]]
    assert len(answer["run"]["sources"]) + answer["left_out"]["run.sources"] == 1000


def widened(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: widened(entry) for name, entry in value.items()}
    if not isinstance(value, list) or not value:
        return value
    nested = isinstance(value[0], (dict, list))
    return [*map(widened, value)] if nested else [value[number % len(value)] for number in range(1000)]


@pytest.mark.parametrize("seed", range(12))
def test_no_answer_is_larger_whatever_it_holds(seed: int) -> None:
    draw = random.Random(seed)
    letters = draw.choice(["x", '"', "\n", "\0", "é"])

    def drawn(depth: int) -> Any:
        kind = draw.choice(("text", "list", "dict") if depth else ("text", "number"))
        count = draw.choice((0, 1, 3, 9))
        if kind == "list":
            return [drawn(depth - 1) for _ in range(count)]
        if kind == "dict":
            return {f"key {number}": drawn(depth - 1) for number in range(count)}
        return letters * draw.choice((1, 50, 500, 5000)) if kind == "text" else draw.random()

    answer = answers.bounded({**{f"part {number}": drawn(3) for number in range(8)}, "next_step": "read"})
    assert characters(answer) <= answers.MOST_CHARACTERS
    assert answer["next_step"] == "read"


def test_scripts_run_only_where_the_user_allowed_it() -> None:
    calls = Calls(allow_run=False)
    verify = calls.verify("DP101", SAMPLE)
    tune = calls.tune_start(["train.py", "--epochs", "1"], time_limit="5m", ranks=2)
    assert verify["command"] == f"dptune verify {SAMPLE} --advice DP101 --time-limit 20m --format json -q"
    assert tune["command"].endswith(" --nproc-per-node 2 train.py --epochs 1")
    assert all("--allow-run" in answer["next_step"] for answer in (verify, tune))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda calls: calls.report("--patch"), "cannot begin with '-'"),
        (lambda calls: calls.what_if(["-o"]), "cannot begin with '-'"),
        (lambda calls: calls.tune_start(["--yes", "train.py"]), "cannot begin with '-'"),
        (lambda calls: calls.tune_start(), "give either `command`"),
        (lambda calls: calls.tune_start(run=SAMPLE, ranks=2), "`ranks` is the number of processes"),
        (lambda calls: calls.tune_status("tune-9"), "no search is called tune-9"),
        (lambda calls: calls.report("nowhere.json"), "nowhere.json"),
    ],
)
@pytest.mark.usefixtures("here")
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
    calls._tunings["tune-1"].process.wait(300)
    status = calls.tune_status("tune-1")
    assert (status["running"], status["next_step"]) == (False, "Ask tune_result.")
    assert any("nowhere.py" in line for line in status["progress"])
    with pytest.raises(CallError, match="tune-1 ended without a result"):
        calls.tune_result("tune-1")
    calls.close()


PATCH, START = "patch -p1 -d /a < /a/tuned.patch", "OMP_NUM_THREADS=2 python train.py"


@pytest.mark.parametrize(
    ("found", "next_step"),
    [
        ({"apply": PATCH}, f"Apply the patch: {PATCH}."),
        (
            {"apply": PATCH, "start": START, "by_hand": ["a line"]},
            f"Apply the patch: {PATCH}; start the script with its variables: {START}; add the lines in `by_hand` to "
            "the script.",
        ),
        ({"by_hand": ["a line"]}, "Add the lines in `by_hand` to the script."),
        ({"outcome": "results differ", "apply": PATCH}, "Nothing to apply."),
        (
            {"outcome": "nothing kept", "ended": "out of time", "resume": "dptune tune --resume --run a"},
            "Nothing to apply. Continue with a longer time limit: dptune tune --resume --run a --time-limit 1h",
        ),
    ],
)
def test_the_next_step_after_a_search_has_all_that_applies_it(
    found: dict[str, Any], next_step: str, tmp_path: Path
) -> None:
    empty: dict[str, Any] = dict.fromkeys(Tuning.model_fields, "") | {"by_hand": [], "outcome": "faster"}
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned" / "tuning.json").write_text(json.dumps({**empty, **found}))
    calls = Calls(allow_run=True)
    with subprocess.Popen(["true"], text=True) as ended:
        pass
    calls._tunings["tune-1"] = _Tuning(ended, tmp_path / "tuned", tmp_path / "progress.txt")
    assert calls.tune_result("tune-1")["next_step"] == next_step


@pytest.mark.parametrize(
    ("change", "outcome", "learning", "next_step"),
    [
        ("DP101", "better", "alike", f"Apply it: dptune report {SAMPLE} --patch --advice DP101 | git apply"),
        ("DP101", "better", "not known", f"Apply it: dptune report {SAMPLE} --patch --advice DP101 | git apply"),
        ("DP101", "better", "other", "Do not apply it: training results differ (`learning`)."),
        ("DP101", "worse", "alike", "Do not apply it."),
        ("loader.num_workers=2", "better", "alike", "Set it in the script."),
    ],
)
def test_a_change_is_applied_where_it_is_better_and_training_the_same(
    change: str, outcome: str, learning: str, next_step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    proof = {"outcome": outcome, "learning": {"outcome": learning}}
    monkeypatch.setattr(Processes, "output", lambda *_: json.dumps(proof))
    assert Calls(allow_run=True).verify(change, SAMPLE)["next_step"] == next_step

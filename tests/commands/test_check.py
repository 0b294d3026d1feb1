from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import pytest

from dptune.advice import Advice, Change, Headline, Impact, Location, Report, RunSummary, Saving, Skipped, Trust
from dptune.cli import main
from dptune.commands.check import arguments
from dptune.finding import Finding
from dptune.measured import AccumulationFigures, InputFigures, MatmulFigures, Measured, StepTime
from dptune.prove.result import Learning, Proof, Side, Trial

from .. import reading  # noqa: TID252 - tests are no installed package

RECORDED = Path(__file__).parents[1] / "rules" / "recorded" / "runs"  # small ones


def advice(impact: Impact) -> Advice:
    saves = Saving(low_ms=1, high_ms=2, low_share=0.1, high_share=0.2, basis="bound", how="by reasoning")
    return Advice(
        rule="DP102",
        slug="no-sync",
        kind="time",
        impact=impact,
        title=f"a problem of impact {impact}",
        why="because",
        changes=[Change(knob="ddp.no_sync", now=False, then=True, at=Location(file="train.py", line=31))],
        saves=saves,
        confidence="high",
        evidence=[],
        numerics="same",
        fingerprint=f"DP102:ddp:{impact}",
    )


def report(*impacts: Impact, level: str = "sound") -> Report:
    unknown = "not in the trace"
    measured = Measured.only(
        unknown,
        step=StepTime.only(unknown, basis="untraced", time_ns=10_000_000, untraced_median_ns=10_000_000),
        ranks=[],
        input=InputFigures.only(unknown),
        accumulation=AccumulationFigures.only(unknown),
        matmul=MatmulFigures.only(unknown),
    )
    return Report(
        dptune="0.1",
        run=RunSummary(sources=["x"]),
        headline=Headline(verdict="v", why="w", next="n"),
        trust=Trust.model_validate(
            {"level": level, "findings": [Finding(code="steps", level=level, text="two steps are too few")]}
            if level != "sound"
            else {"level": level, "findings": []}
        ),
        advice=[advice(impact) for impact in impacts],
        skipped=[Skipped(rule="DP201", reason=unknown)],
        quiet=[],
        measured=measured,
    )


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> object:
    """A function that fixes the report that `check` will get, in a folder without recordings."""
    monkeypatch.chdir(tmp_path)

    def fix(one: Report) -> None:
        monkeypatch.setattr("dptune.commands.check.report_of", lambda *_, **__: one)

    return fix


@pytest.mark.parametrize(
    ("impacts", "fail_on", "status"),
    [
        ((), "low", 0),
        (("low",), "low", 1),
        (("low",), "medium", 0),
        (("medium", "low"), "medium", 1),
        (("medium",), "high", 0),
        (("high",), "low", 1),
    ],
)
def test_the_gate_trips_at_the_impact_asked_for(impacts, fail_on, status, judged, capsys) -> None:  # type: ignore[no-untyped-def]
    judged(report(*impacts))
    assert main(["check", "x", "--fail-on", fail_on]) == status
    said = capsys.readouterr()
    assert said.out.startswith("FAILED: " if status else "PASSED")
    assert said.err == ""


def test_medium_impact_trips_it_when_nothing_is_asked_for(judged, capsys) -> None:  # type: ignore[no-untyped-def]
    judged(report("low"))
    assert main(["check", "x"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "PASSED with reservations: no findings of at least medium impact and medium confidence, but 1 rule could "
        "not run (see `dptune report --section skipped`)." in said
    )
    judged(report("medium"))
    assert main(["check", "x"]) == 1


def test_it_names_what_tripped_it_where_and_what_it_saves(judged, capsys) -> None:  # type: ignore[no-untyped-def]
    judged(report("high", "low"))
    assert main(["check", "x"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "FAILED: 1 finding of at least medium impact and medium confidence." in said
    assert "high impact, high confidence: DP102 no-sync: a problem of impact high (train.py:31)" in said
    assert "saves 1.00 to 2.00 ms of each 10.0 ms step (10.0 to 20.0 %)" in said
    assert "impact low" not in said


@pytest.mark.parametrize("impacts", [(), ("high",)])
def test_a_run_that_cannot_be_judged_never_passes(impacts, judged, capsys) -> None:  # type: ignore[no-untyped-def]
    judged(report(*impacts, level="unjudgeable"))
    assert main(["check", "x", "--fail-on", "high"]) == 2
    said = capsys.readouterr().out
    assert said.startswith("UNJUDGEABLE: ")
    assert "unjudgeable: two steps are too few" in said


def test_a_partial_run_is_judged_and_says_what_is_missing(judged, capsys) -> None:  # type: ignore[no-untyped-def]
    judged(report(level="partial"))
    assert main(["check", "x"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith(
        "PASSED with reservations: no findings of at least medium impact and medium confidence, but the run is partial"
    )
    assert "partial: two steps are too few" in said
    assert "verdict: v" in said
    assert "could not run: DP201: not in the trace" in said


def test_nothing_is_reserved_where_every_rule_ran(judged, capsys) -> None:  # type: ignore[no-untyped-def]
    judged(report().model_copy(update={"skipped": [], "quiet": ["DP102"]}))
    assert main(["check", "x"]) == 0
    assert capsys.readouterr().out.startswith("PASSED: no findings of at least medium impact and medium confidence.\n")


@pytest.mark.parametrize("impacts", [(), ("high",)])
def test_it_names_the_run_it_judged(impacts, judged, capsys) -> None:  # type: ignore[no-untyped-def]
    run = RunSummary(sources=["runs/mine"], command="python train.py")
    judged(report(*impacts).model_copy(update={"run": run}))
    main(["check", "x"])
    assert "  run: runs/mine (python train.py)\n" in capsys.readouterr().out


def test_json_says_the_outcome_and_what_tripped_it(judged, capsys) -> None:  # type: ignore[no-untyped-def]
    judged(report("high", "low"))
    assert main(["check", "x", "--format", "json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["outcome"], said["fail_on"]) == ("failed", "medium")
    assert [one["fingerprint"] for one in said["tripped"]] == ["DP102:ddp:high"]
    assert said["trust"]["level"] == "sound"


def test_what_cannot_be_read_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.json").write_text("not a trace", encoding="utf-8")
    assert main(["check", str(tmp_path / "x.json")]) == 2
    assert capsys.readouterr().out == ""


def test_several_outputs_at_once(judged, capsys, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    judged(report("high"))
    words = ["--output", f"junit={tmp_path / 'a.xml'}", "--output", f"markdown={tmp_path / 'a.md'}"]
    assert main(["check", "x", *words, "--output", "github=-"]) == 1
    said = capsys.readouterr()
    assert said.out.startswith("::error title=dptune check::FAILED")
    assert "dptune: wrote" in said.err
    assert (tmp_path / "a.xml").read_text().startswith("<?xml")
    assert (tmp_path / "a.md").read_text().startswith("## dptune: FAILED")
    assert main(["check", "x", *words]) == 1
    assert capsys.readouterr().out.startswith("FAILED")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--output", "html=x"], "--output html=x is not FORMAT=FILE"),
        (["--output", "junit"], "--output junit is not FORMAT=FILE"),
        (["--output", "junit=/no/such/folder/x"], "cannot write to /no/such/folder/x"),
        (["--format", "json", "--output", "text=-"], "both go to stdout"),
        (["--max-regression", "5%"], "--max-regression needs something to compare with"),
        (["--update-accepted"], "--update-accepted needs a file"),
        (["--output", "json=-", "--output", "github=-"], "two outputs go to -"),
        (["--output", "junit=out", "--output", "markdown=out"], "two outputs go to out"),
        (["--script", "train.py", "--baseline", "a", "--accept", "b"], "--accept cannot be combined with --script"),
        (["--accept", "/no/such/file"], "cannot read /no/such/file"),
        (["--script", "train.py"], "--script runs two commits or folders"),
        (["--script", "train.py", "--baseline", "a", "b"], "--script takes one command"),
        (["--baseline", "x"], "x is named on both sides"),
    ],
)
def test_what_does_not_go_together_is_one_sentence(words, said, judged, capsys) -> None:  # type: ignore[no-untyped-def]
    judged(report())
    assert main(["check", "x", *words]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert said in told
    assert told.count("dptune: error:") == 1


@pytest.mark.parametrize("share", ["0.05", "time_per_sample=0.05", "5%", "time_per_sample=5 %"])
def test_how_much_longer_it_may_take(share: str) -> None:
    from dptune.commands.check import _share

    assert _share(share) == 0.05


@pytest.mark.parametrize("share", ["latency=5%", "step_time=5%", "5", "time_per_sample=1", "", "-5%"])
def test_a_share_that_is_none_is_refused(judged, capsys, share: str) -> None:  # type: ignore[no-untyped-def]
    judged(report())
    assert main(["check", "x", "--baseline", "y", f"--max-regression={share}"]) == 2
    assert "must be like time_per_sample=5%" in capsys.readouterr().err


def test_advice_is_accepted_by_a_file_that_it_writes(judged, capsys, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    judged(report("high", "medium", "low"))
    file = tmp_path / "accepted.json"
    assert main(["check", "x", "--accept", str(file), "--update-accepted"]) == 0
    assert "accepted 2 more, 2 in all" in capsys.readouterr().err
    held = json.loads(file.read_text())
    assert {one["fingerprint"] for one in held["accepted"]} == {"DP102:ddp:high", "DP102:ddp:medium"}
    held["accepted"][0]["why"] = "a toy"
    file.write_text(json.dumps(held))
    assert main(["check", "x", "--accept", str(file)]) == 0
    assert "not counted (accepted): high impact, high confidence: DP102 no-sync" in " ".join(
        capsys.readouterr().out.split()
    )
    assert main(["check", "x", "--accept", str(file), "--fail-on", "low"]) == 1
    assert main(["check", "x", "--accept", str(file), "--fail-on", "low", "--update-accepted"]) == 0
    again = json.loads(file.read_text())
    assert len(again["accepted"]) == 3
    assert "a toy" in [one["why"] for one in again["accepted"]]
    assert {one["impact"] for one in again["accepted"]} == {"high", "medium", "low"}


def test_annotations_stand_where_the_repository_has_the_lines(judged, capsys, tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    judged(report("high"))
    (tmp_path / "training").mkdir()
    monkeypatch.chdir(tmp_path / "training")
    for top, file in ((tmp_path, "training/train.py"), (tmp_path / "training", "train.py"), ("/elsewhere", "train.py")):
        monkeypatch.setenv("GITHUB_WORKSPACE", str(top))
        assert main(["check", "x", "--format", "github"]) == 1
        assert f"file={file},line=31" in capsys.readouterr().out


def test_annotations_stand_where_the_script_was_started(judged, capsys, tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """The lines of a recording are relative to the folder that it was started in, wherever `check` is."""
    judged(report("high"))
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "train.py").write_text("")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    for started, here in ((tmp_path / "training", tmp_path), (tmp_path / "training", tmp_path / "training")):
        monkeypatch.setattr("dptune.commands.check.root_of", lambda paths, started=started: started)
        monkeypatch.chdir(here)
        assert main(["check", "x", "--format", "github"]) == 1
        assert "file=training/train.py,line=31" in capsys.readouterr().out


def test_what_is_accepted_now_is_still_named(judged, capsys, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    judged(report("high"))
    words = ["check", "x", "--accept", str(tmp_path / "accepted.json"), "--update-accepted", "--format", "json"]
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["outcome"], told["tripped"]) == ("passed", [])
    assert [(one["why"], one["advice"]["rule"]) for one in told["passed_over"]] == [("accepted", "DP102")]


@pytest.mark.parametrize("impact", ['"warn"', '"Warning"', "null", "3", '["high"]'])
def test_a_impact_that_is_none_accepts_nothing(judged, capsys, tmp_path: Path, impact: str) -> None:  # type: ignore[no-untyped-def]
    judged(report("high"))
    file = tmp_path / "accepted.json"
    entry = {"fingerprint": "DP102:ddp:high", "impact": json.loads(impact)}
    file.write_text(json.dumps({"accepted": [entry]}))
    assert main(["check", "x", "--accept", str(file)]) == 2
    assert "the impact of DP102:ddp:high must be one of low, medium, high" in capsys.readouterr().err


def test_accepting_more_keeps_all_that_the_file_holds(judged, capsys, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Of two entries for one piece of advice the one that accepts more counts; both stay."""
    file = tmp_path / "accepted.json"
    twice = [{"fingerprint": "DP102:ddp:high", "impact": at, "why": at} for at in ("high", "low")]
    file.write_text(json.dumps({"team": "vision", "accepted": twice}))
    judged(report("high", "medium"))
    assert main(["check", "x", "--accept", str(file), "--fail-on", "high"]) == 0
    assert main(["check", "x", "--accept", str(file), "--update-accepted"]) == 0
    told = json.loads(file.read_text())
    assert told["team"] == "vision"
    assert told["accepted"][:2] == twice
    assert [one["fingerprint"] for one in told["accepted"][2:]] == ["DP102:ddp:medium"]
    file.write_text('{"accepted": [{"fingerprint": "DP102:ddp:high"}]}')  # at any impact
    judged(report("high"))
    assert main(["check", "x", "--accept", str(file)]) == 0


def test_outputs_do_not_overwrite_each_other_or_what_is_read(judged, capsys, tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    judged(report())
    monkeypatch.chdir(tmp_path)
    assert main(["check", "x", "--output", "json=o.txt", "--output", f"junit={tmp_path / 'o.txt'}"]) == 2
    assert "two outputs go to" in capsys.readouterr().err
    (tmp_path / "accepted.json").write_text('{"accepted": []}')
    assert main(["check", "x", "--accept", "accepted.json", "--output", "json=./accepted.json"]) == 2
    assert "accepted.json is also an input" in capsys.readouterr().err


def test_a_baseline_may_be_named_in_parts() -> None:
    parser = argparse.ArgumentParser()
    arguments(parser)
    assert parser.parse_args(["b", "--baseline", "a1", "--baseline", "a2", "a3"]).baseline == ["a1", "a2", "a3"]
    assert parser.parse_args(["b"]).baseline == []


def test_a_report_that_was_written_before_is_judged(capsys, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """With a byte order mark, and with its keys sorted by another tool, too."""
    told = json.loads(report("high").model_dump_json())
    for n, text in enumerate((json.dumps(told), "\ufeff" + json.dumps(told), json.dumps(told, sort_keys=True))):
        file = tmp_path / f"{n}.json"
        file.write_text(text, encoding="utf-8")
        assert main(["check", str(file)]) == 1
        assert "FAILED: 1 finding" in capsys.readouterr().out


def test_the_latest_recording_is_judged_where_none_is_named(capsys, tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """Also beside a baseline."""
    runs = tmp_path / "dptune-runs"
    shutil.copytree(RECORDED / "workers-restart", runs / "starved", ignore=shutil.ignore_patterns(".dptune-cache"))
    (runs / "latest").write_text("starved\n")
    monkeypatch.chdir(tmp_path)
    assert main(["check", "--format", "json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert "DP502" in {one["rule"] for one in told["tripped"]}
    assert "starved" in told["runs"][0]
    assert main(["check", "--baseline", str(RECORDED / "workers-restart")]) == 2
    assert "dptune-runs/starved (B) are the same recording" in capsys.readouterr().err


def test_a_larger_batch_says_how_few_steps_an_epoch_has_then() -> None:
    """2,048 samples, of which a step takes 2,048 with twice the batch."""
    (own,) = [one for one in reading.sample("accumulation_without_no_sync")[1].advice if one.rule == "DP301"]
    assert {one.label: one.value for one in own.evidence}["optimizer steps per epoch then"] == 1


def test_a_run_that_is_named_twice_is_refused(capsys) -> None:  # type: ignore[no-untyped-def]
    assert main(["check", "runs/a", "runs/b", "runs/a"]) == 2
    assert "runs/a is named twice" in capsys.readouterr().err


def test_a_report_with_a_setting_that_is_not_known_is_refused_by_name(capsys, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "base.json"
    file.write_text(report("high").model_dump_json().replace("ddp.no_sync", "ddp.no_sink"))
    assert main(["check", str(file)]) == 2
    said = capsys.readouterr().err
    assert f"{file} is not a report this version can read" in said
    assert "ddp.no_sink" in said


def test_accepting_advice_does_not_let_anything_else_pass(judged, capsys, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    words = ["check", "x", "--accept", str(tmp_path / "accepted.json"), "--update-accepted"]
    judged(report("high", level="unjudgeable"))
    assert main(words) == 2
    assert capsys.readouterr().out.startswith("UNJUDGEABLE")
    judged(report("high"))
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("PASSED")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is not JSON: Expecting value (line 1)"),
        ('{"accepted": [\n {"fingerprint": "x"},\n]}', "it is not JSON: "),
        ("[]", "it has no list `accepted`"),
        ('{"accepted": {}}', "it has no list `accepted`"),
        ('{"accepted": [1]}', "entry 1 has no text `fingerprint`"),
        ('{"accepted": [{"fingerprint": "x"}, {}]}', "entry 2 has no text `fingerprint`"),
        ("[" * 100_000, "it is nested too deeply"),
        ("\x00", "it is not JSON: "),
    ],
)
def test_a_file_of_something_else_is_refused(judged, capsys, tmp_path: Path, text: str, why: str) -> None:  # type: ignore[no-untyped-def]
    judged(report())
    (tmp_path / "accepted.json").write_text(text)
    assert main(["check", "x", "--accept", str(tmp_path / "accepted.json")]) == 2
    assert f"is not a file of accepted findings: {why}" in capsys.readouterr().err


def test_a_byte_order_mark_is_no_mistake_and_what_is_more_severe_than_accepted_is_told(  # type: ignore[no-untyped-def]
    judged, capsys, tmp_path: Path
) -> None:
    judged(report("high"))
    entry = {"fingerprint": "DP102:ddp:high", "impact": "low"}
    (tmp_path / "accepted.json").write_text("\ufeff" + json.dumps({"accepted": [entry]}), encoding="utf-8")
    for form in ("text", "json", "markdown", "github"):
        assert main(["check", "x", "--accept", str(tmp_path / "accepted.json"), "--format", form]) == 1
        assert "DP102 is accepted up to low impact and now has high impact" in capsys.readouterr().out


def test_budgets_of_the_configuration(judged, capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    judged(report())
    monkeypatch.chdir(tmp_path)
    for limit, status in ((10, 0), (9.9, 1)):
        (tmp_path / "dptune.toml").write_text(f"[budget]\nstep_ms = {limit}\n")
        assert main(["check", "x"]) == status
        assert "step_ms, step time in ms: 10, at most" in capsys.readouterr().out
    (tmp_path / "dptune.toml").write_text("[budget]\nidle_share = 10\n")
    assert main(["check", "x"]) == 2
    assert "is 10, but a share is at most 1" in capsys.readouterr().err
    (tmp_path / "dptune.toml").write_text("[budget]\nstep_msec = 1\n")
    assert main(["check", "x"]) == 2
    assert "did you mean 'step_ms'?" in capsys.readouterr().err
    (tmp_path / "dptune.toml").write_text('[budget]\nstep_ms = "fast"\n')
    assert main(["check", "x"]) == 2
    assert "must be a number, 0 or above" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ended", "status", "said"),
    [
        ("cannot run", 2, "UNJUDGEABLE: it cannot be compared with the baseline"),
        ("not comparable", 2, "UNJUDGEABLE"),
        ("interrupted", 130, "the same command continues with these trials"),
        ("out of time", 0, "the same command with a longer --time-limit continues with these trials"),
        ("undecided", 0, "INCONCLUSIVE: unknown whether it is slower than the baseline"),
    ],
)
def test_trials_that_tell_nothing_do_not_pass_as_if_they_did(ended, status, said, capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    side = Side(name=".", settings={}, command=["python", "train.py", "--key", "***"], directory="x", code="y")
    failed = Trial.model_construct(side="B", status="failed", without_effect={})
    found = {"ended": ended, "outcome": "inconclusive", "decided_by": "", "objective": "time per step"}
    learning = Learning.only("it did not run", outcome="not known", reason="it did not run")
    missing = {"ratio": "it did not run", "fast_ratio": "it did not run"}
    made = {"b": side, "trials": [failed], "looks": [], "missing": missing, "learning": learning}
    proof = Proof.model_construct(**found, **made, reason="side B cannot run: failed")
    monkeypatch.setattr("dptune.commands.check.prove_sources", lambda *_: proof)
    assert main(["check", "--script", "train.py --key secret", "--baseline", "main"]) == status
    told = capsys.readouterr()
    assert said in " ".join((told.out + told.err).split())
    assert "secret" not in told.out
    if ended == "undecided":
        assert main(["check", "--script", "train.py", "--baseline", "main", "--inconclusive", "fail"]) == 1
        assert capsys.readouterr().out.startswith("FAILED: a slowdown against the baseline is not excluded.")


def test_a_batch_that_is_known_of_one_side_alone_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its steps may be shorter because they are of fewer samples."""
    sample = RECORDED / "same-order"
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        shutil.copytree(sample, name, ignore=shutil.ignore_patterns(".dptune-cache"))
    for path in Path("b").glob("*.facts.json"):
        facts = json.loads(path.read_text(encoding="utf-8"))
        for window in facts["windows"]:
            window["durations_ns"] = [int(1.1 * duration) for duration in window["durations_ns"]]
            window["loader_samples"] = []
        path.write_text(json.dumps(facts), encoding="utf-8")
    assert main(["check", "b", "--baseline", "a"]) == 2
    assert "samples per step are known for one side only" in " ".join(capsys.readouterr().err.split())


def test_a_baseline_of_something_else_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(RECORDED / name) for name in ("same-order", "workers-restart")]
    assert main(["check", runs[0], "--no-cache", "--baseline", runs[1]]) == 2
    told = capsys.readouterr().err
    assert "the runs are not comparable: " in told
    assert "hint: record the baseline again" in told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("warning", "'warning' is now 'medium'"),
        ("loud", "'loud' is not an impact; choose from low, medium, high, never"),
        ("high:sure", "'sure' is not a confidence; choose from low, medium, high"),
        ("high:", "'' is not a confidence; choose from low, medium, high"),
    ],
)
def test_what_is_no_impact_is_refused_with_those_there_are(words, told, judged, capsys) -> None:  # type: ignore[no-untyped-def]
    judged(report("high"))
    assert main(["check", "x", "--fail-on", words]) == 2
    assert told in capsys.readouterr().err


def test_impact_and_confidence_may_be_asked_for(judged, capsys) -> None:  # type: ignore[no-untyped-def]
    unsure = report("high")
    judged(unsure.model_copy(update={"advice": [unsure.advice[0].model_copy(update={"confidence": "low"})]}))
    assert main(["check", "x"]) == 0
    assert main(["check", "x", "--fail-on", "high:low"]) == 1
    assert "FAILED: 1 finding of high impact." in capsys.readouterr().out


def test_what_was_written_with_severities_still_reads(judged, tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    old = json.loads(report("high").model_dump_json())
    for one in old["advice"]:
        del one["impact"]
        one["severity"] = "error"
    assert Report.model_validate(old).advice[0].impact == "high"
    file = tmp_path / "accepted.json"
    file.write_text(json.dumps({"accepted": [{"fingerprint": "DP102:ddp:high", "severity": "warning"}]}))
    judged(report("high"))
    assert main(["check", "x", "--accept", str(file)]) == 1
    assert "DP102 is accepted up to medium impact and now has high impact" in capsys.readouterr().out


@pytest.mark.parametrize("severity", ["fatal", ["error"], {}, None])
def test_a_severity_that_never_was_is_refused(judged, tmp_path, capsys, severity) -> None:  # type: ignore[no-untyped-def]
    """Else the advice would be accepted at any impact."""
    file = tmp_path / "accepted.json"
    file.write_text(json.dumps({"accepted": [{"fingerprint": "DP102:ddp:high", "severity": severity}]}))
    judged(report("high"))
    assert main(["check", "x", "--accept", str(file)]) == 2
    assert "the severity of DP102:ddp:high is none of note, warning, error" in capsys.readouterr().err
    old = json.loads(report("high").model_dump_json())
    for one in old["advice"]:
        one["severity"] = one.pop("impact") and severity
    with pytest.raises(ValueError, match="impact"):
        Report.model_validate(old)

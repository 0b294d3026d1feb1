"""`dptune tune` from the command line, with trials whose times are known: no script is started."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from dptune.advice import Change
from dptune.capture import interpreter
from dptune.commands import tune
from dptune.errors import UsageError
from dptune.patch import diff
from dptune.prove import engine, recorded_task
from dptune.prove.result import SideName, Trial
from dptune.prove.task import Task
from dptune.tune import options, runner
from dptune.tune.candidate import settings_at, unpredicted_candidate
from dptune.tune.options import OPTIONS, Options
from dptune.tune.result import Plan, Tuning
from dptune.tune.timed import Timed

from .. import in_process, reading  # noqa: TID252 - tests are no installed package

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "sample_traces" / "starved_loader"
# The calls of the recorded script at their lines, and nothing else: patching takes long where there is more.
SCRIPT = """\
loader = DataLoader(data, args.batch, num_workers=args.workers)

model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
"""
TUNE = ("tune", "--run", "run", "--yes", "--time-limit", "1h")


@pytest.fixture(scope="module")
def read() -> tuple[Any, ...]:
    found = reading.run_and_report_of(SAMPLE)  # as many tests do
    with mock.patch("dptune.commands.shared.reading.run_and_report", return_value=found):
        return tune._read(SAMPLE)


@pytest.fixture(scope="module")
def patched() -> Callable[..., Any]:
    """Of one script the same patches are asked for again and again, and each takes as long as all other things."""
    known: dict[tuple[str, bytes], Any] = {}

    def of(changes: Sequence[Change], source: Path) -> Any:
        asked = repr(changes), (source / "train.py").read_bytes()
        if asked not in known:
            known[asked] = diff.patched(changes, source)
        return known[asked]

    return of


@pytest.fixture
def project(
    tmp_path: Path, read: tuple[Any, ...], patched: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A folder with the demo's script, and a recording of it with a loader that steps wait for, as if made there."""
    monkeypatch.setattr(tune, "_read", lambda folder: read)
    monkeypatch.setattr(recorded_task, "_patched", patched)
    monkeypatch.setattr(interpreter, "_ask", in_process._ask)
    pytest.importorskip("torch", reason="the interpreter of trials is chosen by its torch")
    (tmp_path / "train.py").write_text("\n" * 64 + SCRIPT)
    shutil.copytree(SAMPLE, tmp_path / "run")
    record = tmp_path / "run" / "run.json"
    found = json.loads(record.read_text())
    found["working_directory"] = str(tmp_path)
    record.write_text(json.dumps(found))
    return tmp_path


class Trials:
    """Trials of 1 s: a step of 100 ms less what the settings of the side save."""

    def __init__(self) -> None:
        self.made: list[tuple[SideName, dict[str, Any]]] = []
        self.ends_at = -1
        self.loss = 1.0
        self.fails: Callable[[dict[str, Any]], bool] = lambda settings: False

    def __call__(
        self, task: Task, side: SideName, number: int, folder: Path, left_s: float, warn: object, beside: bool
    ) -> Trial:
        settings = {name: value for name, value in task.settings[side].items() if task.changed and side == "B"}
        if len(self.made) == self.ends_at:
            return trial(number, side, status="interrupted", note="it was interrupted")
        self.made.append((side, settings))
        if self.fails(settings):
            return trial(number, side, status="failed", note="ValueError: no")
        workers = settings.get("loader.num_workers", 0)
        saved = {0: 0, 1: 40, 2: 50, 3: 60}.get(workers, 70)
        saved -= 20 * (settings.get("optimizer.foreach") is True)
        noise = 1 + 0.001 * (len(self.made) * 7 % 11)
        loss = self.loss if settings.get("optimizer.fused") else 1.0
        return trial(number, side, step_ns=round(1e6 * (100 - saved) * noise), losses=[loss] * 8)


def trial(number: int, side: SideName, status: str = "ran", note: str = "", **figures: Any) -> Trial:
    step_ns = figures.pop("step_ns", None)
    names = ("step_ns", "fast_step_ns")
    return Trial(
        number=number,
        side=side,
        status=status,
        note=note,
        began="2026-11-27T10:00:00+00:00",
        seconds=1.0,
        steps=30,
        samples_per_step=64,
        median_step_ns=step_ns or 0,
        missing={} if step_ns else dict.fromkeys(names, note),
        **dict.fromkeys(names, step_ns),
        **figures,
    )


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> Trials:
    made = Trials()
    monkeypatch.setattr(runner, "run_side", made)
    monkeypatch.setattr(engine, "run_side", made)
    return made


def result(folder: Path) -> Tuning:
    return Tuning.model_validate_json((folder / "tuning.json").read_text())


def test_the_plan_starts_nothing(project: Path, trials: Trials) -> None:
    done = in_process.dptune(*TUNE, "--dry-run", "--format", "json", cwd=project)
    plan = Plan.model_validate_json(done.stdout)
    assert (done.returncode, trials.made, (project / "run" / "tuned").exists()) == (0, [], False)
    first = plan.candidates[0]
    assert (first.name, first.settings) == ("DP501", {"loader.num_workers": 4, "loader.persistent_workers": True})
    assert 0.5 < first.predicted_low_share < first.predicted_high_share < 0.75
    assert all(candidate.numerics == "same" for candidate in plan.candidates)
    text = in_process.dptune(*TUNE, "--dry-run", cwd=project).stdout
    assert "DP501" in text
    assert "not predicted" in text


def test_what_makes_the_script_faster_is_kept_with_a_patch_that_applies(project: Path, trials: Trials) -> None:
    before = {path: path.read_bytes() for path in project.glob("*.py")}
    done = in_process.dptune(*TUNE, cwd=project)
    assert done.returncode == 0, done.stderr
    found = result(project / "run" / "tuned")
    assert (found.outcome, found.kept, found.ended) == ("faster", ["DP501"], "complete")
    assert found.final is not None
    assert found.final.ratio == pytest.approx(0.3, abs=0.01)
    assert found.final.trials == 6
    assert found.level_spent < found.level == 0.05
    rejected = {tried.name: tried.reason for tried in found.tried if tried.result == "dropped"}
    assert rejected["optimizer.foreach=true"].startswith("slower in each of ")
    assert {path: path.read_bytes() for path in project.glob("*.py")} == before
    report = (project / "run" / "tuned" / "report.txt").read_text()
    assert report.startswith(f"Verdict     Faster: {100 * (1 - found.final.ratio):.1f} % less time per sample")
    assert "patch -p1 -d " in report
    subprocess.run(found.apply, shell=True, check=True, capture_output=True)
    assert "num_workers=4, persistent_workers=True" in (project / "train.py").read_text()


def test_a_recording_of_another_machine_is_run_with_consent_only(project: Path, trials: Trials) -> None:
    done = in_process.dptune("tune", "--run", "run", cwd=project)
    assert (done.returncode, trials.made) == (2, [])
    assert "run was not recorded by you on this machine" in done.stderr
    assert "optimizer.foreach=true" in done.stderr  # among the settings


def test_nothing_is_kept_where_nothing_helps(project: Path, trials: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    done = in_process.dptune(*TUNE, "--skip", "DP501,loader.num_workers", cwd=project)
    found = result(project / "run" / "tuned")
    assert (done.returncode, found.outcome, found.kept, found.final) == (0, "nothing kept", [], None)
    assert (found.patch, found.apply, list((project / "run" / "tuned").glob("*.patch"))) == ("", "", [])
    assert "left out by --skip" in {each.reason for each in found.not_tried}
    assert done.stdout.startswith("Verdict     Nothing kept.")


def test_a_change_that_alters_training_is_never_kept(project: Path, trials: Trials) -> None:
    trials.loss = 1.01  # of each trial with a fused optimizer
    in_process.dptune(*TUNE, "--only", "optimizer.fused", cwd=project)
    (tried,) = result(project / "run" / "tuned").tried
    assert (tried.name, tried.result) == ("optimizer.fused=true", "dropped")
    assert "B's training results differ" in tried.reason


@pytest.mark.parametrize(
    ("setting", "differs"),
    [({"compile.model": True}, False), ({"loader.num_workers": 2}, False), ({"optimizer.fused": True}, True)],
)
def test_other_random_numbers_do_not_drop_a_change(setting: dict[str, Any], differs: bool, tmp_path: Path) -> None:
    """Of a script with dropout, whose losses differ by 10 % where passes draw other numbers."""
    stack, arm = ([Timed(1.0, 1.0, trial=trial(n, "A", losses=losses)) for n in (1, 2)] for losses in ([1.0], [1.1]))
    changed = unpredicted_candidate(settings_at(None, setting))
    runs = runner.RealRunner(lambda changes: pytest.fail("no trial"), tmp_path, None, print, 1.0)  # type: ignore[arg-type]
    assert bool(runs.altered(stack, arm, changed)) == differs


def test_after_an_interrupt_the_search_goes_on_with_its_trials(project: Path, trials: Trials) -> None:
    words = (*TUNE, "--only", "loader.num_workers,optimizer.foreach")
    whole = in_process.dptune(*words, "-o", "whole", cwd=project)
    assert whole.returncode == 0
    expected, made = result(project / "whole"), list(trials.made)
    trials.made.clear()
    trials.ends_at = 10
    cut = in_process.dptune(*words, "-o", "cut", cwd=project)
    assert cut.returncode == 130
    assert result(project / "cut").ended == "interrupted"
    assert " Continue dptune tune --resume --run run -o cut\n" in cut.stdout
    trials.ends_at = -1
    done = in_process.dptune("tune", "--run", "run", "--yes", "-o", "cut", "--resume", cwd=project)  # with its options
    assert (done.returncode, "continuing with 10 earlier trials" in done.stderr) == (0, True)
    again = result(project / "cut")
    assert (again.kept, again.outcome, again.ended) == (expected.kept, "faster", "complete")
    assert len(trials.made) == len(made)


def test_an_interrupted_final_comparison_keeps_the_stack(project: Path, trials: Trials) -> None:
    only = (*TUNE, "--only", "DP501")
    trials.ends_at = 1 + 12 + 3  # the first run, six rounds, three trials of the final comparison
    done = in_process.dptune(*only, cwd=project)
    assert done.returncode == 130
    found = result(project / "run" / "tuned")
    assert (found.kept, found.ended, found.outcome) == (["DP501"], "interrupted", "not compared")
    trials.ends_at = -1
    assert in_process.dptune(*only, "--resume", cwd=project).returncode == 0  # the same options may be repeated
    assert result(project / "run" / "tuned").outcome == "faster"
    assert len(trials.made) == 1 + 12 + 12


def test_trials_of_other_code_are_refused(project: Path, trials: Trials) -> None:
    trials.ends_at = 1
    in_process.dptune(*TUNE, cwd=project)
    (project / "train.py").write_text((project / "train.py").read_text() + "\n")
    done = in_process.dptune(*TUNE, "--resume", cwd=project)
    assert done.returncode == 2
    assert "used different code, candidates, steps or hardware" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--numerics", "may-change"),
            "--numerics differs from the search to resume: may-change now, same before",
        ),
        (("--only", "DP501"), "--only differs from the search to resume: DP501 now, loader.num_workers before"),
        (("--skip", "DP501"), "--skip differs from the search to resume: DP501 now, not given before"),
        (("--steps", "31"), "--steps differs from the search to resume: 31 now, 30 before"),
        (("train.py",), "--resume continues with the recorded command"),
        (("--nproc-per-node", "2"), "--nproc-per-node is for recording"),
    ],
)
def test_a_search_is_not_resumed_with_other_options(
    words: tuple[str, ...], message: str, project: Path, trials: Trials
) -> None:
    (project / "run" / "tuned").mkdir()
    Options(only=["loader.num_workers"]).write(project / "run" / "tuned")
    (project / "run" / "tuned" / "trials.json").write_text("{}")
    done = in_process.dptune("tune", "--run", "run", "--yes", "--resume", *words, cwd=project)
    assert (done.returncode, trials.made, message in done.stderr) == (2, [], True), done.stderr


def test_a_secret_of_the_command_is_not_kept_and_has_to_be_repeated(tmp_path: Path) -> None:
    given = ["train.py", "--token", "hunter2", "--epochs", "1"]
    Options(command=given).write(tmp_path)
    assert "hunter2" not in (tmp_path / OPTIONS).read_text()
    kept = options.read(tmp_path)
    with pytest.raises(UsageError, match="the command of the search has a secret"):
        kept.continued({"time_limit_s": 60.0})
    continued = kept.continued({"time_limit_s": 60.0, "command": given})
    assert (continued.command, continued.time_limit_s) == (given, 60.0)
    with pytest.raises(UsageError, match="the command differs from the search to resume"):
        kept.continued({"command": ["train.py", "--token", "hunter2", "--epochs", "2"]})


def test_a_script_that_fails_ends_it_with_status_1(project: Path, trials: Trials) -> None:
    trials.fails = lambda settings: not settings
    done = in_process.dptune(*TUNE, cwd=project)
    assert done.returncode == 1
    assert "The script does not run without changes: ValueError: no." in done.stdout
    assert result(project / "run" / "tuned").ended == "cannot run"


@pytest.mark.parametrize(
    ("changed", "message", "hint"),
    [
        (
            {"working_directory": "/nowhere"},
            "started in /nowhere, which does not exist here",
            "dptune tune train.py ITS ARGUMENTS",
        ),
        ({"command": ["python", "gone.py"]}, "no such script: gone.py", "-- train.py ITS ARGUMENTS"),
    ],
)
def test_what_cannot_be_started_again_has_a_hint_that_tune_takes(
    changed: dict[str, Any], message: str, hint: str, project: Path, trials: Trials
) -> None:
    record = project / "run" / "run.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"launched_by": "dptune"} | changed))
    done = in_process.dptune(*TUNE, cwd=project)
    assert (done.returncode, trials.made) == (2, [])
    assert message in done.stderr.splitlines()[-2]
    assert done.stderr.splitlines()[-1].startswith("hint: ")
    assert done.stderr.endswith(f"{hint}\n")


def test_each_search_has_a_folder_of_its_own(project: Path, trials: Trials) -> None:
    for name in ("tuned", "tuned-2"):
        in_process.dptune(*TUNE, "--only", "optimizer.foreach", "-q", cwd=project)
        assert (project / "run" / name / "tuning.json").is_file()
    (project / "mine").mkdir()
    (project / "mine" / "notes.txt").write_text("mine")
    done = in_process.dptune(*TUNE, "-o", "mine", cwd=project)
    assert (done.returncode, "mine is not empty" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("tune",), "there is nothing to record"),
        (("tune", "--run", "nowhere"), "nowhere is not a dptune run folder"),
        (("tune", "--run", "run", "--python", "python3", "--dry-run"), "--python is for recording"),
        (("tune", "--run", "run", "--resume"), "run has no search to continue"),
        (("tune", "--run", "run", "--only", "DP9999"), "DP9999"),
        (("tune", "--run", "run", "--skip", "loader.num_worker"), "did you mean 'loader.num_workers'?"),
        (("tune", "--run", "run", "-o", "train.py"), "train.py is not a folder"),
        (("tune", "--nnodes", "2", "train.py"), "trials run on this host only"),
    ],
)
def test_refusals(words: tuple[str, ...], message: str, project: Path, trials: Trials) -> None:
    done = in_process.dptune(*words, cwd=project)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    assert trials.made == []

"""Real trials of real scripts, through `dptune verify`: what it decides, keeps, goes on with, and leaves alone."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from dptune.prove import judging, trial
from dptune.prove.result import Trial

from .. import in_process  # noqa: TID252 - tests are no installed package
from ..quiet import as_if_alone  # noqa: TID252 - tests are no installed package

pytestmark = pytest.mark.records

DPTUNE = (sys.executable, "-m", "dptune")
WITHOUT_COMPILER = Path(__file__).parents[1] / "without_compiler"
# A step takes PAUSE; the script writes beside itself, and one variable makes it fail, hang, or run out of memory. Its
# optimizer is its own: one of torch's loads torch.compile, which is a third of what such a short trial takes.
TRAIN = """\
import os, time
import torch
torch.set_num_threads(1)
torch.manual_seed(1)
model = torch.nn.Linear(8, 8)
class Descent(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
    def add_param_group(self, group):
        self.param_groups.append({**self.defaults, **group, "params": list(group["params"])})
    def step(self):
        for group in self.param_groups:
            for param in group["params"]:
                param.data -= group["lr"] * param.grad
                param.grad = None
optimizer = Descent(model.parameters(), lr=float(os.environ.get("RATE", "0.1")))
with open("checkpoint.txt", "a") as file:
    file.write(os.environ.get("DPTUNE_TRIAL", "the user's own") + os.environ.get("WANDB_MODE", "") + "\\n")
for step in range(60):
    model(torch.randn(4, 8)).pow(2).mean().backward()
    optimizer.step()
    time.sleep(float(os.environ.get("PAUSE", "0.01")))
    ending = os.environ.get("ENDING") if step == 6 else None
    if ending == "fail":
        raise ValueError("the data are gone")
    if ending == "hang":
        time.sleep(300)
    if ending == "memory":
        torch.empty(2**60)
"""
AMOUNT = ("--warmup", "2", "--steps", "12", "--seconds", "0")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the script and a recording of it."""
    pytest.importorskip("torch", reason="trials need torch")
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "train.py").write_text(TRAIN)
    words = (
        "profile",
        "--run-dir",
        "base",
        "--warmup",
        "2",
        "--untraced",
        "5",
        "--light",
        "3",
        "--detailed",
        "0",
        "-q",
    )
    done = in_process.recording(*words, "train.py", cwd=folder, env=surroundings())
    assert done.returncode == 0, done.stderr
    as_if_alone(folder / "base")
    return folder


@pytest.fixture
def project(recorded: Path, tmp_path: Path) -> Path:
    """The same, as if it had been recorded here."""
    return as_recorded_in(tmp_path / "project", recorded)


def as_recorded_in(folder: Path, recorded: Path) -> Path:
    """A copy of it, as if it had been recorded there."""
    shutil.copytree(recorded, folder)
    record = folder / "base" / "run.json"
    record.write_text(record.read_text().replace(str(recorded), str(folder)))
    return folder


def surroundings() -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return {**env, "PYTHONPATH": str(WITHOUT_COMPILER)}


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return in_process.recording(*words, cwd=cwd, env=surroundings())


def left_in(folder: Path) -> list[str]:
    """Processes that are still somewhere in the folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").readlink().is_relative_to(folder):
                found.append((process / "cmdline").read_text())
    return found


@dataclass(frozen=True)
class Verified:
    """A change that makes steps slower, verified by two real trials, an interrupt, and ten that are like these."""

    project: Path
    interrupted_status: int
    interrupted: list[dict[str, object]]  # the trials that were kept by then
    left: list[str]  # processes that the interrupt left
    done: subprocess.CompletedProcess[str]
    latest: str  # the latest recording, before

    @property
    def folder(self) -> Path:
        (folder,) = (path.parent for path in (self.project / "base" / "verified").glob("*/proof.json"))
        return folder

    @property
    def proof(self) -> dict[str, Any]:
        return json.loads((self.folder / "proof.json").read_text())  # type: ignore[no-any-return]


SLOWER = ("verify", "base", "--set", "env.PAUSE=0.2", *AMOUNT)  # than 0.01, however busy the machine is
SLOWER_IN_REPORT = re.compile(r"env\.PAUSE=0\.2: slower: [\d.]+ % more time per step")


def interrupted_at(line: str, *words: str, cwd: Path) -> int:
    """The status of a command that gets an interrupt as soon as it shows a line that starts with this.

    As on a machine whose cores nobody takes: a trial that is disturbed would be run again. subprocess does not wait for
    what it runs just then, but kills it; a file that is opened just then is closed as garbage.
    """
    ended, main = threading.Event(), threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # else it may come to this thread
        while not ended.wait(0.02):
            if any(shown.startswith(line) for shown in os.pread(2, 1 << 20, 0).decode(errors="replace").splitlines()):
                signal.pthread_kill(main, signal.SIGINT)
                return

    watches = threading.Thread(target=interrupt)
    with mock.patch.object(judging, "disturbed", return_value=False), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "subprocess [0-9]+ is still running|unclosed file", ResourceWarning)
        watches.start()
        try:
            return run(*words, cwd=cwd).returncode
        finally:
            ended.set()
            watches.join()
            gc.collect()


def played(kept: list[dict[str, object]], most: int = 1000) -> contextlib.AbstractContextManager[object]:
    """In place of running: a trial is like that of its side in `kept`, some longer; after `most` comes an interrupt."""
    real = {one["side"]: Trial.model_validate(one) for one in kept}
    made = itertools.count(1)

    def runs(launch: object, side: Any, number: int, settings: object, bounds: object, *more: object) -> Trial:
        if next(made) > most:
            raise KeyboardInterrupt
        longer = 1 + 0.01 * (number % 5)
        took = {name: round(longer * getattr(real[side], name)) for name in ("step_ns", "fast_step_ns")}
        return real[side].model_copy(update={"number": number, "taken_share": 0.0, **took})

    return mock.patch.object(trial, "run", runs)


@pytest.fixture(scope="module")
def verified(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> Verified:
    project = as_recorded_in(tmp_path_factory.mktemp("verified") / "project", recorded)
    latest = (project / "dptune-runs" / "latest").read_text()
    status = interrupted_at("dptune: trial 3", *SLOWER, cwd=project)
    left = left_in(project)
    (proof,) = (project / "base" / "verified").glob("*/proof.json")
    kept = json.loads(proof.read_text())["trials"]
    with played(kept):
        done = in_process.dptune(*SLOWER, cwd=project)
    return Verified(project, status, kept, left, done, latest)


def test_an_interrupted_verification_goes_on_with_its_trials(verified: Verified) -> None:
    assert (verified.interrupted_status, len(verified.interrupted), verified.left) == (130, 2, [])
    assert verified.proof["trials"][:2] == verified.interrupted
    assert "dptune: trial 1:" not in verified.done.stderr


def test_a_change_that_hurts_is_found(verified: Verified) -> None:
    done, proof = verified.done, verified.proof
    assert done.returncode == 0, done.stderr
    assert (proof["outcome"], proof["ended"]) == ("worse", "decided")
    counted = [t["side"] for t in proof["trials"] if not t["set_aside"]]
    assert [counted.count(side) for side in "AB"] == [6, 6]
    assert proof["a_step_ns"] > 10e6  # the pause, and what is computed: longer beside other tests
    assert proof["b_step_ns"] > 200e6
    assert proof["learning"]["outcome"] == "alike"
    assert done.stdout.startswith("Verdict     Worse: with env.PAUSE=0.2 the time per step is ")
    assert "dptune: of base: python train.py" in done.stderr
    assert "dptune: decides after 6, 9, 13, 18, 25 or 35 trials per side, within 1800 s" in done.stderr


def test_the_users_own_files_are_as_before(verified: Verified) -> None:
    assert (verified.project / "checkpoint.txt").read_text() == "the user's own\n"
    assert not (verified.folder / "scratch").exists()
    latest = (verified.project / "dptune-runs" / "latest").read_text()
    assert latest == verified.latest  # no trial is a recording of the user's


def test_the_verdict_stands_in_later_reports(verified: Verified) -> None:
    report = in_process.dptune("report", "base", "--full", cwd=verified.project)
    assert SLOWER_IN_REPORT.search(" ".join(report.stdout.split()))
    bare = in_process.dptune("report", "--full", cwd=verified.project)
    assert bare.stdout.replace("dptune-runs/../base", "base") == report.stdout


def test_a_verdict_is_not_made_again_unless_it_must_be_more_exact(verified: Verified) -> None:
    ran = len(verified.proof["trials"])  # 12, and what another process's load set aside
    done = in_process.dptune(*SLOWER, cwd=verified.project)
    assert f"dptune: continuing with {ran} earlier trials, the last from " in done.stderr
    assert f"trial {ran + 1}" not in done.stderr
    with played(verified.interrupted, most=0):
        more = in_process.dptune(*SLOWER, "--within", "0.01%", cwd=verified.project)  # needs more trials
    assert (more.returncode, f"dptune: trial {ran + 1}: " in more.stderr) == (130, True)


def test_trials_of_other_code_are_kept_apart(verified: Verified) -> None:
    project, trials = verified.project, verified.proof["trials"]
    ran = len(trials)
    (project / "train.py").write_text(TRAIN + "# mended\n")
    with played(verified.interrupted, most=1):
        done = in_process.dptune(*SLOWER, cwd=project)
    assert f"dptune: starting over: {ran} earlier trials used different code" in done.stderr
    assert "dptune: written after the run was recorded: train.py; both sides run the current code," in done.stderr
    (kept,) = (project / "base" / "verified" / "earlier").iterdir()
    assert json.loads((kept / "proof.json").read_text())["trials"] == trials
    again = in_process.dptune("report", "base", "--full", cwd=project)
    assert SLOWER_IN_REPORT.search(" ".join(again.stdout.split()))  # despite few trials of other code
    (project / "train.py").write_text(TRAIN)
    done = in_process.dptune(*SLOWER, cwd=project)
    assert f"dptune: continuing with {ran} earlier trials, the last from " in done.stderr
    assert f"dptune: trial {ran + 1}" not in done.stderr


def verified_to_cannot_run(folder: Path, setting: str) -> tuple[subprocess.CompletedProcess[str], int]:
    """What `verify` says of a change that side A runs without, and the stall timeout: one that no step of A reaches."""
    for seconds in (5, 20, 80):
        shutil.rmtree(folder / "base" / "verified", ignore_errors=True)
        words = ("--set", setting, *AMOUNT, "--stall-timeout", str(seconds))
        done = run("verify", "base", *words, cwd=folder)
        assert left_in(folder) == []
        if f"Side B ({setting}) cannot run" in " ".join(done.stdout.split()):
            break
    return done, seconds


@pytest.mark.parametrize(
    ("ending", "status", "note"),
    [
        pytest.param("fail", "failed", "ValueError: the data are gone", marks=pytest.mark.thorough),
        pytest.param(
            "memory", "out of memory", "DefaultCPUAllocator: can't allocate memory", marks=pytest.mark.thorough
        ),
        pytest.param("hang", "hung", "no optimizer step for {seconds} s", marks=pytest.mark.thorough),
    ],
)
def test_what_a_trial_comes_to_is_a_result(project: Path, ending: str, status: str, note: str) -> None:
    done, seconds = verified_to_cannot_run(project, f"env.ENDING={ending}")
    assert done.returncode == 1, done.stderr
    (folder,) = (path for path in (project / "base" / "verified").iterdir() if path.is_dir())
    proof = json.loads((folder / "proof.json").read_text())
    failed = [trial for trial in proof["trials"] if trial["side"] == "B"]
    assert [trial["status"] for trial in failed] == [status] * 2
    assert all(note.format(seconds=seconds) in trial["note"] for trial in failed)
    assert (proof["ended"], proof["outcome"]) == ("cannot run", "inconclusive")
    assert f"Side B (env.ENDING={ending}) cannot run: {status}" in " ".join(done.stdout.split())


# With several buckets torch's PowerSGD hook never ends on gloo.
TWO_BUCKETS = """\
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
torch.set_num_threads(1)
torch.manual_seed(1)
dist.init_process_group("gloo")
model = nn.Sequential(*[nn.Linear(128, 128) for _ in range(8)])
model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.05)
if "POWER" in os.environ:
    model.register_comm_hook(PowerSGDState(None, 1, 2), powerSGD_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(60):
    model(torch.randn(4, 128)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.thorough
def test_powersgd_of_two_buckets_hangs_on_gloo_and_nothing_of_it_is_left(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="trials need torch")
    (tmp_path / "train.py").write_text(TWO_BUCKETS)
    windows = ("--warmup", "2", "--untraced", "5", "--light", "3", "--detailed", "0")
    done = run(
        "profile", "-q", "--no-links", "--run-dir", "base", *windows, "--nproc-per-node", "2", "train.py", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    done, seconds = verified_to_cannot_run(tmp_path, "env.POWER=1")
    assert done.returncode == 1, done.stderr
    said = " ".join(done.stdout.split())
    assert f"Side B (env.POWER=1) cannot run: hung: no optimizer step for {seconds} s" in said


@pytest.mark.thorough
def test_a_change_that_makes_it_learn_something_else_is_named(project: Path) -> None:
    """Two trials a side tell it; however slow the machine: each call goes on with the trials before."""
    for limit in ("6", "12", "25", "60", "120", "200"):
        done = run("verify", "base", "--set", "env.RATE=3", *AMOUNT, "--time-limit", limit, cwd=project)
        assert done.returncode == 0, done.stderr
        if "Training results differ" in " ".join(done.stdout.split()):
            break
    assert "Training results differ" in " ".join(done.stdout.split())
    assert "B's training results differ" in " ".join(done.stdout.split())


@pytest.mark.thorough
def test_where_trials_write_is_told(project: Path) -> None:
    """Before they run, where; after them, which of the user's own files they changed."""
    (project / "big.bin").write_bytes(bytes(8 * 2**20 + 1))
    with (project / "huge.pt").open("wb") as file:
        file.truncate(512 * 2**20 + 1)
    os.mkfifo(project / "pipe")
    (project / "train.py").write_text(TRAIN + 'open("big.bin", "ab").write(b"more")\n')
    words = ("verify", "base", "--set", "env.PAUSE=0", "--steps", "100", "--seconds", "0", "--time-limit", "1")
    done = run(*words, "--", "train.py", "--out=/data/out", "--api-key", "s3cret", cwd=project)
    assert done.returncode == 0, done.stderr
    (told,) = [line for line in done.stderr.splitlines() if line.startswith("dptune: trials run in")]
    assert told.startswith(f"dptune: trials run in a copy of {project}; what the script writes by an absolute path")
    assert "as to --out=/data/out" in told
    assert f"{project}/huge.pt is not copied (the total size limit of the copy is reached)" in done.stderr
    assert f"Changed{project}/big.bin,whiletrial1" in "".join(done.stdout.split())  # a long path is folded
    assert "trials had no copy of it: it is too large to copy" in " ".join(done.stdout.split())
    assert f"Lacking{project}/pipe;trialshadnocopyofit:itisneitherafilenorafolder" in "".join(done.stdout.split())
    (proof,) = (project / "base" / "verified").glob("*/proof.json")
    assert "s3cret" not in proof.read_text()
    assert json.loads(proof.read_text())["command"] == "python train.py --out=/data/out --api-key <redacted>"
    again = run("verify", "base", "--set", "env.PAUSE=0.001", *AMOUNT, "--here", "--time-limit", "0.1", cwd=project)
    assert f"trials run in {project} itself: the script overwrites its checkpoints and outputs" in again.stderr


@pytest.mark.thorough
def test_secrets_among_the_settings_are_used_and_not_kept(project: Path) -> None:
    set_ = ("--set", "env.MY_TOKEN=s3cret", "--time-limit", "0.1")
    done = run("verify", "base", *set_, *AMOUNT, cwd=project)
    assert done.returncode == 0, done.stderr
    kept = [path for path in (project / "base").rglob("*") if path.is_file() and b"s3cret" in path.read_bytes()]
    assert kept == []
    assert "s3cret" not in done.stdout + done.stderr
    windows = ("--warmup", "1", "--untraced", "3", "--light", "0", "--detailed", "0", "--run-dir", "other")
    assert run("profile", "-q", *windows, "--set", "env.MY_TOKEN=s3cret", "train.py", cwd=project).returncode == 0
    done = run("verify", "other", "--set", "env.PAUSE=0", cwd=project)
    assert done.returncode == 2
    assert "the recorded value of env.MY_TOKEN lacks its secret" in done.stderr


@pytest.mark.thorough
def test_trials_of_other_steps_are_not_mixed(project: Path) -> None:
    words = ("verify", "base", "--set", "env.PAUSE=0", "--seconds", "0", "--time-limit", "0.1", "--format", "json")
    assert run(*words, "--steps", "5", cwd=project).returncode == 0
    done = run(*words, "--steps", "6", cwd=project)
    assert "starting over: 1 earlier trial used different code, steps or hardware" in done.stderr
    assert {trial["steps"] for trial in json.loads(done.stdout)["trials"]} == {6}


@pytest.mark.thorough
def test_what_could_not_run_is_tried_again(project: Path) -> None:
    words = ("verify", "base", "--set", "env.ENDING=fail", *AMOUNT)
    assert run(*words, cwd=project).returncode == 1
    done = run(*words, "--time-limit", "0.1", cwd=project)
    assert "could not be run (kept in" in done.stderr
    assert "dptune: trial 1:" in done.stderr


@pytest.mark.thorough
def test_a_change_without_effect_is_not_run_to_the_end(project: Path) -> None:
    done = run("verify", "base", "--set", "ddp.bucket_cap_mb=1", *AMOUNT, cwd=project)
    assert "No verdict: ddp.bucket_cap_mb=1 did not take effect." in " ".join(done.stdout.split())
    assert done.stderr.count("dptune: trial") <= 3
    report = in_process.dptune("report", "base", "--full", cwd=project)
    assert "the script creates no DistributedDataParallel" in " ".join(report.stdout.split())


@pytest.mark.thorough
def test_a_script_that_ends_within_its_trial_still_tells_what_it_was(tmp_path: Path) -> None:
    """DistributedDataParallel is gone by then, and was there all the same."""
    pytest.importorskip("torch", reason="trials need torch")
    ending = '\nprint("over")\ndel model, optimizer\ndist.barrier()\ndist.destroy_process_group()\n'
    (tmp_path / "train.py").write_text(TWO_BUCKETS + ending)
    windows = ("--warmup", "2", "--untraced", "5", "--light", "3", "--detailed", "0")
    done = run(
        "profile", "-q", "--no-links", "--run-dir", "base", *windows, "--nproc-per-node", "2", "train.py", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    words = ("--set", "ddp.bucket_cap_mb=1", "--steps", "100", "--time-limit", "40", "--format", "json")
    done = run("verify", "base", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)["trials"]
    assert {trial["side"] for trial in made} == {"A", "B"}
    assert all(trial["status"] == "ran" and not trial["without_effect"] for trial in made)


@pytest.mark.thorough
def test_what_the_run_has_already_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="trials need torch")
    (tmp_path / "train.py").write_text(TRAIN)
    words = ("--warmup", "2", "--untraced", "5", "--light", "3", "--detailed", "0", "-q", "--set", "env.PAUSE=0.02")
    assert (
        run("profile", "--run-dir", "base", *words, "--set", "ddp.bucket_cap_mb=1", "train.py", cwd=tmp_path).returncode
        == 0
    )
    done = run("verify", "base", "--set", "env.PAUSE=0.02", *AMOUNT, cwd=tmp_path)
    assert done.returncode == 2
    assert "the run was already recorded with env.PAUSE=0.02" in done.stderr
    assert not (tmp_path / "base" / "verified").exists()
    report = " ".join(in_process.dptune("report", "base", "--full", cwd=tmp_path).stdout.split())
    made_none = "the script creates no DistributedDataParallel"
    assert f"Set env.PAUSE=0.02; ddp.bucket_cap_mb=1 (did not take effect: {made_none})" in report


@pytest.mark.thorough
def test_code_that_changes_while_trials_run_ends_them(project: Path) -> None:
    """What was timed before is kept, and of the trial in which it changed nothing."""
    words = [*DPTUNE, "verify", "base", "--set", "env.PAUSE=0.02", *AMOUNT]
    process = subprocess.Popen(words, cwd=project, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("dptune: trial 2"):
            (project / "train.py").write_text(TRAIN.replace("0.1", "0.2"))
            break
    _, said = process.communicate(timeout=900)
    assert process.returncode == 2
    assert "train.py changed while trials ran: finished trials are kept and used the old code" in said
    (proof,) = (project / "base" / "verified").glob("*/proof.json")
    assert [one["number"] for one in json.loads(proof.read_text())["trials"]] == [1]


@pytest.mark.thorough
def test_sides_of_which_one_ends_early_are_not_compared(project: Path) -> None:
    """Its few steps are not those that the other times: the first are slower, say."""
    short = TRAIN.replace("range(60)", "range(int(os.environ.get('LENGTH', '60')))")
    (project / "train.py").write_text(short)
    done = run("verify", "base", "--set", "env.LENGTH=9", *AMOUNT, cwd=project)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "Verdict Inconclusive: the sides cannot be compared. Why The script of B ends after 7 timed steps, " in said
    assert "fewer than requested, while the other continues: request fewer (--steps 7)" in said
    assert "(B): the script ended after 7 of 12 steps to be timed" in said
    (proof,) = (project / "base" / "verified").glob("*/proof.json")
    assert sum(not one["set_aside"] for one in json.loads(proof.read_text())["trials"]) == 2


# It swallows its own end, and every signal but the last; a trial that waited for its end would leave a file.
DEAF = """\
import pathlib, signal, time
for one in (signal.SIGINT, signal.SIGTERM):
    signal.signal(one, signal.SIG_IGN)
try:
    exec(open("loop.py").read())
except BaseException:
    time.sleep(300)
    pathlib.Path(FILE).touch()
"""


@pytest.mark.thorough
def test_a_script_that_does_not_end_costs_a_trial_little(project: Path) -> None:
    (project / "loop.py").write_text(TRAIN)
    (project / "train.py").write_text(DEAF.replace("FILE", repr(str(project / "at its end"))))
    done = run("verify", "base", "--set", "env.PAUSE=0.02", *AMOUNT, "--time-limit", "1", cwd=project)
    assert done.returncode == 0, done.stderr
    assert not (project / "at its end").exists()
    (proof,) = (project / "base" / "verified").glob("*/proof.json")
    assert {one["status"] for one in json.loads(proof.read_text())["trials"]} == {"ran"}
    assert left_in(project) == []


@pytest.mark.thorough
def test_a_script_that_does_not_end_is_not_waited_for_when_interrupted(project: Path) -> None:
    (project / "loop.py").write_text(TRAIN)
    (project / "train.py").write_text(DEAF.replace("FILE", repr(str(project / "at its end"))))
    words = [*DPTUNE, "verify", "base", "--set", "env.PAUSE=0.03", *AMOUNT, "--warmup", "50"]
    process = subprocess.Popen(words, cwd=project, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stderr is not None
    next(line for line in process.stderr if line.startswith("dptune: trial 1"))
    time.sleep(4)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=900)
    assert process.returncode == 130
    assert "dptune: the same command continues with these trials" in said
    assert not (project / "at its end").exists()
    assert left_in(project) == []


@pytest.mark.thorough
def test_a_script_above_the_working_directory_runs(project: Path) -> None:
    """Trials work in a copy, from which the same relative path leads elsewhere."""
    here = project / "experiment"
    here.mkdir()
    windows = ("--warmup", "2", "--untraced", "5", "--light", "3", "--detailed", "0", "-q", "--run-dir", "own")
    assert run("profile", *windows, "../train.py", cwd=here).returncode == 0
    words = ("verify", "own", "--set", "env.PAUSE=0.02", *AMOUNT, "--time-limit", "1")
    done = run(*words, cwd=here)
    assert done.returncode == 0, done.stderr
    (project / "train.py").write_text(TRAIN + "# mended\n")  # it is part of the code, though it lies elsewhere
    assert "starting over" in run(*words, cwd=here).stderr


@pytest.mark.thorough
def test_a_proof_of_another_command_says_so(project: Path) -> None:
    (project / "other.py").write_text(TRAIN)
    short = (*AMOUNT, "--time-limit", "1")
    done = run("verify", "base", "--set", "env.PAUSE=0.03", *short, "--", "other.py", cwd=project)
    assert done.returncode == 0, done.stderr
    assert "dptune: out of time: the same command with a longer --time-limit continues" in done.stderr
    report = " ".join(in_process.dptune("report", "base", "--full", cwd=project).stdout.split())
    words = r"env.PAUSE=0.03: inconclusive, of `python other.py`: out of time: \d+ trials per side are too few"
    assert re.search(words, report)
    run("verify", "base", "--set", "env.PAUSE=0.03", *short, cwd=project)
    assert len([one for one in (project / "base" / "verified").iterdir() if one.is_dir()]) == 2
    damaged = next((project / "base" / "verified").glob("*/proof.json"))
    damaged.write_text("{}")
    report = "".join(in_process.dptune("report", "base", "--full", cwd=project).stdout.split())
    assert f"{damaged.relative_to(project)}hasnoreadableresult" in report


def test_a_script_that_is_gone_is_told_before_the_first_trial(project: Path) -> None:
    (project / "train.py").unlink()
    done = in_process.dptune("verify", "base", "--set", "env.PAUSE=0.03", *AMOUNT, cwd=project)
    assert done.returncode == 2
    assert "train.py" in done.stderr.splitlines()[0]
    assert not (project / "base" / "verified").exists()


@pytest.mark.thorough
def test_what_a_trial_leaves_behind_is_ended(project: Path) -> None:
    leaving = 'import subprocess\nsubprocess.Popen(["sleep", "300"], start_new_session=True)\n'
    (project / "train.py").write_text(leaving + TRAIN)
    done = run("verify", "base", "--set", "env.PAUSE=0", *AMOUNT, "--time-limit", "0.1", cwd=project)
    assert done.returncode == 0, done.stderr
    assert left_in(project) == []


@pytest.mark.thorough
def test_in_the_folder_itself_the_script_writes_there(project: Path) -> None:
    done = run("verify", "base", "--set", "env.PAUSE=0", *AMOUNT, "--here", "--time-limit", "1", cwd=project)
    assert done.returncode == 0, done.stderr
    assert (project / "checkpoint.txt").read_text().splitlines() == ["the user's own", "1disabled"]
    assert "Inconclusive: too few trials ran." in done.stdout


def test_what_cannot_be_started_again_is_told(tmp_path: Path, project: Path) -> None:
    record = json.loads((project / "base" / "run.json").read_text())
    (project / "base" / "run.json").write_text(
        json.dumps({**record, "command": ["python", "train.py", "--key=<redacted>"]})
    )
    done = in_process.dptune("verify", "base", "--set", "env.PAUSE=0", cwd=project)
    assert done.returncode == 2
    assert "the recorded command lacks its secrets" in done.stderr
    (project / "base" / "run.json").write_text("[]")
    for words, said in {
        ("base", "--set", "env.A=1"): "base cannot be restarted: run.json",
        ("base",): "nothing to verify",
        ("train.py", "--set", "env.A=1"): "is not a dptune run folder",
    }.items():
        assert said in in_process.dptune("verify", *words, cwd=project).stderr.splitlines()[0]

"""`dptune tune` with real runs of small scripts: a planted fault, none, and an interrupt."""

from __future__ import annotations

import json
import random
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ..prove.test_engine import DPTUNE, interrupted_at, left_in, run, surroundings  # noqa: TID252 - tests are no installed package

pytestmark = pytest.mark.records

# Each sample takes PAUSE. The optimizer is the script's own: one of torch's loads torch.compile, which takes longer
# than all the steps of such a short trial.
TRAIN = """\
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(1)
torch.set_num_threads(1)

class Samples(Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        time.sleep(float(sys.argv[1]))
        return torch.full((8,), float(index % 7))

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

model = torch.nn.Linear(8, 8)
optimizer = Descent(model.parameters(), lr=0.001)
with open("checkpoint.txt", "a") as file:
    file.write("written\\n")
for inputs in DataLoader(Samples(), batch_size=8):
    model(inputs).pow(2).mean().backward()
    optimizer.step()
    time.sleep(float(sys.argv[2]))
"""
TRIAL = ("--warmup", "2", "--steps", "10", "--seconds", "0")
RESUME = ("tune", "--run", "base", "--resume")
ENDS_WITHIN_S = 2 * 3600.0  # a search of an hour on a machine that does other things as well
STARVED, HEALTHY = ("0.005", "0.001"), ("0", "0.03")


def project(folder: Path) -> Path:
    pytest.importorskip("torch", reason="trials need torch")
    (folder / "train.py").write_text(TRAIN)
    return folder


def tuned(folder: Path) -> tuple[Path, dict[str, Any]]:
    (found,) = folder.glob("dptune-runs/*/tuned/tuning.json")
    return found.parent, json.loads(found.read_text())


def test_an_interrupt_leaves_no_process_and_the_search_goes_on(tmp_path: Path) -> None:
    folder = project(tmp_path)
    words = ("tune", *TRIAL, "train.py", *STARVED)
    assert interrupted_at("dptune: race 1, round 1", *words, cwd=folder) == 130
    assert left_in(folder) == []
    place, result = tuned(folder)
    assert (result["ended"], result["kept"], result["final"]) == ("interrupted", [], None)
    assert (folder / "train.py").read_text() == TRAIN
    assert (folder / "checkpoint.txt").read_text() == "written\n"  # by the recording, not by trials
    kept = len(json.loads((place / "trials.json").read_text())["entries"])
    done = run("tune", "--resume", *TRIAL, "--time-limit", "1", cwd=folder)
    assert f"dptune: continuing with {kept} earlier trial" in done.stderr
    assert (done.returncode, tuned(folder)[1]["ended"]) == (0, "out of time")
    assert left_in(folder) == []


@pytest.mark.thorough
def test_workers_are_kept_for_a_loader_that_steps_wait_for(tmp_path: Path) -> None:
    folder = project(tmp_path)
    only = ("--only", "loader.num_workers", "--time-limit", "1h")
    done = run("tune", *only, *TRIAL, "train.py", *STARVED, cwd=folder)
    assert done.returncode == 0, done.stderr
    place, result = tuned(folder)
    assert result["outcome"] == "faster"
    assert result["settings"]["loader.num_workers"] >= 2
    assert result["final"]["ratio"] < 0.8
    assert result["final"]["learns"] != "other"
    before = (folder / "train.py").read_text()
    assert before == TRAIN
    subprocess.run(result["apply"], shell=True, check=True, capture_output=True)
    assert f"num_workers={result['settings']['loader.num_workers']}" in (folder / "train.py").read_text()
    assert "num_workers" in (place / "tuned.patch").read_text()


@pytest.mark.thorough
def test_nothing_is_kept_of_a_script_that_only_waits(tmp_path: Path) -> None:
    folder = project(tmp_path)
    done = run("tune", *TRIAL, "--time-limit", "1h", "train.py", *HEALTHY, cwd=folder)
    assert done.returncode == 0, done.stderr
    _, result = tuned(folder)
    assert (result["outcome"], result["kept"]) == ("nothing kept", [])


@pytest.mark.thorough
def test_a_search_that_is_interrupted_ten_times_comes_to_the_same_result(tmp_path: Path) -> None:
    """Interrupts come at drawn moments: while files are read, in trials, between them, and in the final comparison."""
    folder, draw = project(tmp_path), random.Random(7)
    short = ("--warmup", "2", "--untraced", "10", "--light", "3", "--detailed", "0", "--no-links", "-q")
    assert run("profile", *short, "--run-dir", "base", "train.py", *STARVED, cwd=folder).returncode == 0
    words = ("tune", "--run", "base", "--only", "loader.num_workers", "--time-limit", "1h", *TRIAL)
    place, kept, ended = folder / "base" / "tuned", 0, []
    for _ in range(10):
        resume = (place / "options.json").exists()
        status, error = interrupted_after(draw.uniform(1, 40), *(RESUME if resume else words), cwd=folder)
        assert status in (0, 130, -signal.SIGINT), error  # 0: it came to its end before; -SIGINT: while it imported
        ended.append(status)
        assert left_in(folder) == []
        assert (folder / "train.py").read_text() == TRAIN
        if (place / "trials.json").exists():
            made = len(json.loads((place / "trials.json").read_text())["entries"])
            assert made >= kept
            kept = made
    assert ended.count(130) > 1
    done = run(*RESUME, cwd=folder)
    assert done.returncode == 0, done.stderr
    result = json.loads((place / "tuning.json").read_text())
    assert (result["outcome"], result["ended"]) == ("faster", "complete")
    assert result["settings"]["loader.num_workers"] >= 2
    assert not (folder / "checkpoint.txt").read_text().count("written\n") > 1  # by the recording alone


def interrupted_after(seconds: float, *words: str, cwd: Path) -> tuple[int, str]:
    """The status of a dptune that gets SIGINT so long after it started, and what it says on stderr."""
    with subprocess.Popen(
        [*DPTUNE, *words], cwd=cwd, env=surroundings(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            return process.wait(seconds), process.communicate()[1]
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            return process.wait(ENDS_WITHIN_S), process.communicate()[1]

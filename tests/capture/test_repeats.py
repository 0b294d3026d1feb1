"""`dptune profile --repeat`: the recorded script, timed in further processes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from dptune.runfile import json_files
from dptune.runfile.facts import Facts

from .. import in_process  # noqa: TID252 - tests are no installed package
from .conftest import PLAIN, SHORT, environment

# The second of its processes fails in its tenth step.
FAILS = """
    import os, sys, torch
    from pathlib import Path
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Path("begun").open("a") as file:
        file.write(".")
    for step in range(60):
        if step == 4 and len(Path("begun").read_text()) == 3:
            raise RuntimeError("no more")
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def medians(folder) -> list[int]:
    words = [sys.executable, "-m", "dptune", "report", str(folder), "--format", "json", "--no-cache"]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=900, check=True)
    step = json.loads(done.stdout)["measured"]["step"]
    return [step["untraced_median_ns"], *step["repeats_ns"], step["time_ns"]]


@pytest.mark.records
@pytest.mark.thorough
def test_the_script_is_timed_in_further_processes(profile):
    run = profile(PLAIN + "    print('mode', __import__('os').environ.get('DPTUNE_TRIAL'))\n", *SHORT, "--repeat", "2")
    assert run.status == 0, run.err
    assert {path.name for path in (run.folder / "repeats").iterdir()} == {"1", "2", "1.txt", "2.txt"}
    for number in ("1", "2"):
        facts = json_files.read(run.folder / "repeats" / number / "rank-00000.facts.json", Facts)
        assert [(window.name, window.steps) for window in facts.windows] == [("untraced", 4)]
    assert "untraced repeat 2 of 2" in run.err
    own, first, second, median = medians(run.folder)
    assert median == sorted((own, first, second))[1]
    assert (run.folder.parent / "dptune-runs" / "latest").read_text().strip().endswith("run")


@pytest.mark.thorough
@pytest.mark.records
def test_one_that_fails_is_said_and_not_counted(profile):
    run = profile(FAILS, *SHORT, "--repeat", "3")
    assert run.status == 0
    assert "untraced repeat: the script ended differently (failed): not counted" in run.err
    assert "repeats/2.txt has its output" in run.err
    assert run.err.rstrip().endswith(f"next: dptune report {run.folder}")
    assert "no more" in (run.folder / "repeats" / "2.txt").read_text()
    assert not (run.folder / "repeats" / "3").exists()
    assert len(medians(run.folder)) == 3


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--untraced", "0"], "--repeat times untraced steps"),
        (["--env"], "requires that dptune starts all ranks"),
        (["--continue"], "--continue would run it to its end each time"),
        (["--nnodes", "2", "--nproc-per-node", "2"], "requires that dptune starts all ranks"),
    ],
)
def test_what_cannot_be_repeated(tmp_path, options, why):
    (tmp_path / "train.py").write_text("")
    done = in_process.dptune("profile", "--repeat", "1", *options, "train.py", cwd=tmp_path)
    assert (done.returncode, why in done.stderr) == (2, True), done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"train.py"}

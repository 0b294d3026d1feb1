from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dptune.capture import processes
from dptune.capture.progress import listen
from dptune.runfile import json_files
from dptune.runfile.facts import Facts
from dptune.runfile.record import RunRecord

from .conftest import PLAIN, SHORT, Run, environment

pytestmark = pytest.mark.records

IN_THE_LIGHT_WINDOW = "        if step == 7: {}\n"


@pytest.fixture
def profile(profile_either: Callable[..., Run]) -> Callable[..., Run]:
    """How recordings end is up to the whole chain of processes, which thorough tests start."""
    return profile_either


def two_ranks(body: str) -> str:
    start = """
    import os, sys, time, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    rank = dist.get_rank()
"""
    return start + textwrap.indent(textwrap.dedent(body), "    ")


def test_an_exception_in_a_window_keeps_what_was_recorded(profile: Callable[..., Run]) -> None:
    run = profile(PLAIN + IN_THE_LIGHT_WINDOW.format("raise ValueError('mine')"), *SHORT)
    assert run.status == 1
    assert "ValueError: mine" in run.err
    assert "rank-00000.trace.json.gz" in run.files
    assert run.facts().ended == "raised ValueError"
    light = run.facts().window("light")
    assert light is not None
    assert (light.complete, light.steps) == (False, 1)
    assert run.record.ending.how == "failed"
    assert f"next: dptune report {run.folder}" in run.err


@pytest.mark.thorough
def test_a_script_shorter_than_the_windows(profile: Callable[..., Run]) -> None:
    run = profile(PLAIN.replace("60", "5"), *SHORT)
    assert run.status == 0
    assert "the script ended before all windows were full: the recording is partial" in run.err
    assert run.facts().window("untraced").steps == 3  # type: ignore[union-attr]
    assert run.files == {"run.json", "rank-00000.facts.json"}


@pytest.mark.thorough
def test_status_of_the_worker_that_failed_first_is_returned(profile: Callable[..., Run]) -> None:
    run = profile(two_ranks("if rank == 1: sys.exit(7)\ntime.sleep(60)\n"), "--nproc-per-node", "2")
    assert run.status == 7
    assert "the script ended with exit status 7 before its first optimizer step" in run.err
    assert run.files == {"run.json"}
    assert run.record.ending.how == "failed"


@pytest.mark.thorough
def test_failure_before_the_first_step(profile: Callable[..., Run]) -> None:
    run = profile("    import torch\n    raise RuntimeError('no data')\n")
    assert run.status == 1
    assert "RuntimeError: no data" in run.err
    assert "dptune: error: the script ended with exit status 1 before its first optimizer step" in run.err
    assert "hint: the script's own output is above" in run.err


@pytest.mark.thorough
def test_a_script_that_never_steps(profile: Callable[..., Run]) -> None:
    run = profile("    import torch\n    print(torch.ones(2).sum().item())\n")
    assert run.status == 2
    assert "dptune: error: the script ended without a step of a torch optimizer" in run.err
    assert run.record.ending.how == "no-steps"


@pytest.mark.thorough
def test_no_first_step_in_time_says_where_each_rank_is(profile: Callable[..., Run]) -> None:
    waits = "if rank == 1:\n    time.sleep(900)\ndist.barrier()\n"
    for seconds in ("15", "60", "240"):  # however long both ranks take to get there
        run = profile(two_ranks(waits), "--nproc-per-node", "2", "--first-step-timeout", seconds)
        assert run.status == 2
        begins = f"dptune: error: no optimizer step within {seconds} s"
        line = next(line for line in run.err.splitlines() if line.startswith(begins))
        if "train.py:6" in line:
            break
        shutil.rmtree(run.folder)
    assert "train.py:7" in line.split("rank 0: ")[1].split(";")[0]
    assert "train.py:6" in line.split("rank 1: ")[1]
    assert "--first-step-timeout" in run.err
    assert run.record.ending.how == "timed-out"


@pytest.mark.thorough
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_the_script_in_a_window(tmp_path: Path, number: signal.Signals, status: int) -> None:
    pytest.importorskip("torch", reason="recording needs torch")
    body = (
        PLAIN.replace("import sys, torch", "import sys, time, torch")
        + "        time.sleep(0.05 if step < 7 else 600)\n"
    )
    (tmp_path / "train.py").write_text(textwrap.dedent(body))
    command = [sys.executable, "-m", "dptune", "profile", "--run-dir", "run", *SHORT, "train.py"]
    started = subprocess.Popen(command, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True)
    live = tmp_path / "run" / "live"
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline and not any(one.step == 8 for one in listen(live)):
        time.sleep(0.1)
    (script,) = processes.descendants(started.pid)
    if number is signal.SIGINT:
        started.send_signal(number)  # a terminal sends it to both
    os.kill(script, number)
    _, err = started.communicate(timeout=900)
    assert started.returncode == status, err
    facts = json_files.read(tmp_path / "run" / "rank-00000.facts.json", Facts)
    assert facts.window("light").steps == 1  # type: ignore[union-attr]
    assert (tmp_path / "run" / "rank-00000.trace.json.gz").exists()
    assert not (tmp_path / "run" / "live").exists()
    assert json_files.read(tmp_path / "run" / "run.json", RunRecord).ending.exit_status == status
    assert not Path(f"/proc/{script}").exists()

"""What scripts do that a recorder must bear: the script's own result comes first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dptune.capture import processes
from dptune.runfile import json_files
from dptune.runfile.record import RunRecord

from .conftest import PLAIN, SHORT, Run, environment

pytestmark = pytest.mark.records


@pytest.fixture
def profile(profile_either: Callable[..., Run]) -> Callable[..., Run]:
    """What goes wrong may reach the whole chain of processes, which thorough tests start."""
    return profile_either


TWO_RANKS = """
    import torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(40):
        model(torch.randn(4, 8)).sum().backward()
        {}
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()
"""


def test_a_script_that_profiles_itself_is_left_to_it(profile: Callable[..., Run]) -> None:
    """Two profilers at once bring the process down."""
    script = """
    import torch
    from torch.profiler import profile, schedule
    torch._lazy_modules.discard("_inductor")  # which the profiler loads, 3.6 s, where it is to be had
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with profile(schedule=schedule(wait=5, warmup=1, active=3, repeat=3), acc_events=True) as theirs:
        for step in range(60):
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            theirs.step()
    print("end")
    """
    run = profile(script, "--continue", *SHORT)
    assert (run.status, run.out.strip()) == (0, "end")
    assert "the script runs torch.profiler itself (train.py:7)" in run.err
    facts = run.facts()
    assert facts.ended == "recording stopped: the script runs torch.profiler itself (train.py:7)"
    theirs = facts.script_profiler
    assert (theirs.where, theirs.cycle, theirs.repeat, theirs.running) == ("train.py:7", [5, 1, 3], 3, True)
    assert theirs.calls in (theirs.optimizer_steps, theirs.optimizer_steps - 1)
    assert 0 < theirs.spent_ns < theirs.lasted_ns or not theirs.calls


@pytest.mark.thorough
def test_a_script_that_profiled_its_first_steps_is_recorded_afterwards(profile: Callable[..., Run]) -> None:
    script = """
    import torch
    from torch.profiler import profile
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def train(steps):
        for step in range(steps):
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
    with profile():
        train(1)
    train(60)
    """
    facts = profile(script, "--continue", *SHORT).facts()
    assert facts.ended == "complete"
    assert facts.window("detailed").trace
    theirs = facts.script_profiler
    assert (theirs.where, theirs.cycle, theirs.repeat) == ("train.py:10", None, 0)
    assert (theirs.running, theirs.optimizer_steps, theirs.calls) == (False, 1, 0)


def test_a_script_that_starts_a_profiler_in_a_window_is_left_to_it(profile: Callable[..., Run]) -> None:
    """Also where it stops again before dptune's own begins: some of the timed steps were slowed."""
    script = """
    import torch
    from torch.profiler import profile, schedule
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    theirs = profile(schedule=schedule(wait=1, warmup=1, active=1))
    for step in range(60):
        if step == 3:
            theirs.start()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        if step == 3:
            theirs.stop()
    """
    facts = profile(script, "--continue", *SHORT).facts()
    assert facts.ended == "recording stopped: the script runs torch.profiler itself (train.py:6)"
    theirs = facts.script_profiler
    assert (theirs.where, theirs.cycle, theirs.repeat) == ("train.py:6", [1, 1, 1], 0)


@pytest.mark.thorough
def test_steps_made_in_a_thread_each(profile: Callable[..., Run]) -> None:
    """A profiler is bound to its thread: a thread that is gone is not taken for its successor."""
    script = """
    import threading, torch
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def step():
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
    for _ in range(40):
        thread = threading.Thread(target=step)
        thread.start()
        thread.join()
    print("end")
    """
    run = profile(script, *SHORT)
    assert (run.status, run.out.strip()) == (0, "end")
    assert "Traceback" not in run.err


@pytest.mark.thorough
def test_a_rank_that_skips_steps_leaves_with_the_others(profile: Callable[..., Run]) -> None:
    skips = "if rank == 0 or step not in (3, 6): optimizer.step()"
    run = profile(TWO_RANKS.format(skips), "--nproc-per-node", "2", *SHORT)
    assert run.status == 0, run.err
    assert run.record.ending.how == "complete"
    assert [run.facts(rank).ended for rank in (0, 1)] == ["complete", "complete"]


@pytest.mark.thorough
def test_a_rank_whose_recording_fails_leaves_with_the_others(profile: Callable[..., Run]) -> None:
    fails = """
        if rank == 1 and step == 2:
            from dptune.capture.injected.record.tracing import Tracing
            Tracing.begin = lambda self: 1 / 0
        optimizer.step()
    """
    run = profile(TWO_RANKS.format(textwrap.dedent(fails).replace("\n", "\n        ")), "--nproc-per-node", "2", *SHORT)
    assert run.status == 0, run.err
    assert "dptune: rank 1: recording stopped: ZeroDivisionError" in run.err
    assert run.facts(0).ended == "complete"


@pytest.mark.parametrize("step", [*(pytest.param(one, marks=pytest.mark.thorough) for one in (3, 6, 7)), 10])
def test_a_forked_child_of_a_rank_ends_and_writes_nothing(step: int, profile: Callable[..., Run]) -> None:
    """Untraced, with the profiler set up, while it records, and after it has recorded."""
    script = PLAIN.replace("import sys, torch", "import os, sys, torch")
    script += f"""        if step == {step}:
            if os.fork() == 0:
                print("child")
                sys.exit(3)
            print("status", os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""
    run = profile(script, "--continue", *SHORT)
    assert run.status == 0, run.err
    assert run.out.split() == ["child", "status", "3"]
    assert run.facts().ended == "complete"
    assert run.facts().window("light").complete  # type: ignore[union-attr]


@pytest.mark.thorough
def test_an_optimizer_that_was_only_tried_is_not_the_clock(profile: Callable[..., Run]) -> None:
    trial = "    trial = torch.optim.SGD(model.parameters(), lr=0.1)\n    trial.step()\n    del trial\n    for step"
    run = profile(PLAIN.replace("    for step", trial), *SHORT)
    assert run.facts().ended == "complete"


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_dptune_ends_the_script_too(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(PLAIN).replace("range(60)", "range(10**9)"))
    command = [sys.executable, "-m", "dptune", "profile", "--continue", "--run-dir", "run", *SHORT, "train.py"]
    started = subprocess.Popen(command, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True)
    facts = tmp_path / "run" / "rank-00000.facts.json"
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline and not facts.exists():
        time.sleep(0.1)
    (script,) = processes.descendants(started.pid)
    os.kill(started.pid, number)
    _, err = started.communicate(timeout=900)
    assert started.returncode == 128 + number, err
    assert not Path(f"/proc/{script}").exists()
    assert not (tmp_path / "run" / "live").exists()
    assert json_files.read(tmp_path / "run" / "run.json", RunRecord).ending.how == "interrupted"

"""Ranks that wait for ever: who waits where is said and written down, and all of them are ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptune.capture import stacks
from dptune.capture.stacks import Waiting

from .. import forks  # noqa: TID252 - tests are no installed package
from .conftest import SHORT
from .launching import DPTUNE, TRAIN, Done, facts_in, left_behind, only_run, record_in, run, run_here

pytestmark = [
    pytest.mark.records,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found through /proc"),
]

# As faulthandler writes them: the main thread last, of each the innermost call first.
STACKS = """\
Thread 0x00007f3c8e7fc6c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
  File "/home/me/prefetch.py", line 9 in run

Current thread 0x00007f3ca41c1740 (most recent call first):
  File "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 4811 in barrier
  File "/env/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/me/my model/train.py", line 12 in <module>
"""
BEFORE_THE_FIRST_STEP = """\
import time, torch, torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 1:
    time.sleep(600)
dist.barrier()
"""
TORCHRUN = ("--nproc-per-node", "2")
# Both ranks are forks of the script, which imports torch once.
FORKED = """\
import os, time, torch, torch.distributed as dist

rank = 0 if os.fork() else 1
dist.init_process_group("gloo", store=dist.FileStore("store", 2), rank=rank, world_size=2)
if rank == 1:
    time.sleep(600)
dist.barrier()
"""


def profile(place: Path, script: str, *options: str) -> Done:
    """With the script started, which no fork of the tests is known by (`/proc/PID/environ`)."""
    pytest.importorskip("torch", reason="recording needs torch")
    (place / "train.py").write_text(script)
    words = ("profile", *SHORT, *options, "train.py")
    if "--nproc-per-node" in options:
        return run(*DPTUNE, *words, cwd=place)
    return run_here(*words, cwd=place, env={forks.EACH_STARTED: "1"})


def the_error(done: Done) -> str:
    (line,) = [line for line in done.err.splitlines() if line.startswith("dptune: error: ")]
    return line.removeprefix("dptune: error: ")


def waiting(parent: Path, script: str, where: str, *options: str) -> tuple[Done, Path]:
    """Two ranks that were ended where they stay, and their recording: given as long as they take to get there."""
    for seconds in (8, 20, 60, 240):
        place = parent / str(seconds)
        place.mkdir()
        done = profile(place, script, *options, "--first-step-timeout", str(seconds))
        assert done.status == 2
        assert left_behind(only_run(place)) == []
        if the_error(done).startswith(f"no optimizer step within {seconds} s ({where}"):
            break
    assert where in the_error(done)
    return done, only_run(place)


@pytest.mark.parametrize(
    ("script", "lines", "options"),
    [
        pytest.param(FORKED, (7, 6), (), id="forked"),
        pytest.param(BEFORE_THE_FIRST_STEP, (6, 5), TORCHRUN, id="torchrun", marks=pytest.mark.thorough),
    ],
)
def test_before_the_first_step(tmp_path: Path, script: str, lines: tuple[int, int], options: tuple[str, ...]) -> None:
    where = "rank 0: train.py:{}, in barrier; rank 1: train.py:{})".format(*lines)
    done, folder = waiting(tmp_path, script, where, *options)
    assert f"the stacks of all threads are in {Path('dptune-runs') / folder.name / 'stacks.txt'}" in done.err
    assert "--first-step-timeout" in done.err
    text = (folder / "stacks.txt").read_text()
    assert "== rank 0 (process " in text
    assert "in barrier" in text
    assert text.index("== rank 0") < text.index("== rank 1") < text.rindex(f'train.py", line {lines[1]}')
    assert record_in(folder).ending.how == "timed-out"


@pytest.mark.thorough
def test_after_some_steps(tmp_path: Path) -> None:
    script = TRAIN.replace("    time.sleep(", "    if step == 8 and rank == 1: time.sleep(600)\n    time.sleep(")
    for seconds in (10, 40, 160):  # however long a step takes before that
        place = tmp_path / str(seconds)
        place.mkdir()
        done = profile(place, script, "--nproc-per-node", "2", "--stall-timeout", str(seconds))
        folder = only_run(place)
        assert done.status == 2
        assert left_behind(folder) == []
        if "rank 1: train.py:17)" in the_error(done):
            break
    error = the_error(done)
    assert error.startswith(f"no optimizer step for {seconds} s (rank 0: train.py:")
    assert "rank 1: train.py:17)" in error
    assert "--stall-timeout" in done.err
    assert facts_in(folder)[0].window("untraced").complete  # type: ignore[union-attr]
    assert record_in(folder).ending.how == "timed-out"


def test_a_process_that_has_not_imported_torch(tmp_path: Path) -> None:
    for seconds in (4, 20, 100):  # however long Python takes to start
        place = tmp_path / str(seconds)
        place.mkdir()
        done = profile(place, "import time\ntime.sleep(600)\n", "--first-step-timeout", str(seconds))
        assert done.status == 2
        assert left_behind(only_run(place)) == []
        if "torch is not imported yet" in the_error(done):
            break
    assert "torch is not imported yet" in the_error(done)
    assert "train.py" in the_error(done)


@pytest.mark.thorough
def test_a_rank_that_never_showed_up_is_said(tmp_path: Path) -> None:
    script = "import os, sys, time\nif os.environ['RANK'] == '1': time.sleep(600)\nimport torch\ntime.sleep(600)\n"
    waiting(tmp_path, script, "rank 0: train.py:4; rank 1: torch is not imported yet", *TORCHRUN)


@pytest.mark.thorough
def test_each_rank_under_a_launcher_of_the_users_is_asked(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="recording needs torch")
    (tmp_path / "train.py").write_text(BEFORE_THE_FIRST_STEP)
    launcher = ("torchrun", "--standalone", "--nproc-per-node", "2", "--no-python")
    for seconds in ("15", "60", "240"):  # however long both ranks take to get where they stay
        words = ("profile", "--run-dir", f"run-{seconds}", "--first-step-timeout", seconds, "train.py")
        done = run(*launcher, *DPTUNE, *words, cwd=tmp_path)
        folder = tmp_path / f"run-{seconds}"
        assert done.status != 0
        stacks_of = [(folder / f"stacks-rank-0000{rank}.txt").read_text() for rank in (0, 1)]
        if "in barrier" in stacks_of[0] and 'train.py", line 5' in stacks_of[1]:
            break
    assert "in barrier" in stacks_of[0]
    assert 'train.py", line 5' in stacks_of[1]
    assert record_in(folder).ending.how == "timed-out"
    assert left_behind(folder) == []


@pytest.mark.thorough
def test_a_recording_that_is_complete_may_wait_for_ever(tmp_path: Path) -> None:
    for seconds in (4, 16, 64):  # however long a step takes before that
        place = tmp_path / str(seconds)
        place.mkdir()
        waits = f"    if step == 14: time.sleep({3 * seconds})\n    time.sleep("
        done = profile(place, TRAIN.replace("    time.sleep(", waits), "--continue", "--stall-timeout", str(seconds))
        if done.status == 0:
            break
    assert (done.status, done.out.strip()) == (0, "the script came to its end")
    assert record_in(only_run(place)).ending.how == "complete"


def test_the_place_is_the_users_line_of_the_main_thread() -> None:
    assert stacks.place(STACKS) == "/home/me/my model/train.py:12, in barrier"
    assert stacks.place(STACKS.replace("/home/me/my model", str(Path.cwd()))) == "train.py:12, in barrier"
    assert stacks.place(STACKS.partition("Current")[0]) == "/home/me/prefetch.py:9, in wait"
    assert stacks.place("") is None


def test_ranks_that_wait_at_one_place_are_named_together() -> None:
    found = [Waiting(rank, 100 + rank, "train.py:7, in barrier") for rank in (0, 1, 2, 5)]
    found.append(Waiting(3, 103, "train.py:6"))
    said = stacks.in_words(found, range(8))
    assert said == "ranks 0-2,5: train.py:7, in barrier; rank 3: train.py:6; ranks 4,6-7: never reached the rendezvous"
    unknown = stacks.in_words([Waiting(None, 7, "torch is not imported yet (python train.py)")], [0])
    assert unknown == "process 7: torch is not imported yet (python train.py)"

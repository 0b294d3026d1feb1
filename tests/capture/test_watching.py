"""What the launcher makes of what the ranks say, and of their saying nothing. The ranks are stand-ins without torch."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dptune.capture import processes, watch
from dptune.capture.progress import ProgressLine
from dptune.capture.signals import Signals
from dptune.capture.watch import Limits, Watch, Watched, leftovers

from .conftest import PLAIN, SHORT
from .launching import DPTUNE, left_behind, record_in, run

# say(step, phase, beat) as a rank does it; the working directory is the live folder.
RANK = """
import json, os, shutil, time
def say(step, phase="warm-up", beat=0):
    word = {"rank": 0, "pid": os.getpid(), "step": step, "phase": phase, "where": None, "claimed": True, "beat": beat}
    with open("part", "w") as file:
        json.dump(word, file)
    os.replace("part", f"pid-{os.getpid()}.json")
"""
LIMITS = Limits(first_step_s=1.0, stall_s=1.0)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Callable[..., Watched]]:
    """watched(what the rank does, must_end, stream): what the watch saw of it."""
    live = tmp_path / "live"
    live.mkdir()
    begun: list[subprocess.Popen[bytes]] = []

    def begin(does: str, must_end: bool = True, stream: io.StringIO | None = None) -> Watched:
        process = subprocess.Popen([sys.executable, "-c", RANK + does], cwd=live)
        begun.append(process)
        progress = ProgressLine(35, stream=stream or io.StringIO())
        with Signals() as signals:
            return Watch(process, live, LIMITS, progress, must_end).until_over(signals)

    yield begin
    for process in begun:
        process.kill()
        process.wait()


def test_a_rank_that_makes_no_step_any_more(watched: Callable[..., Watched]) -> None:
    seen = watched("say(3); time.sleep(600)")
    assert (seen.waited_s, seen.steps, seen.complete) == (1.0, 3, False)


BEATS = "for beat in range(12):\n    say({step}, beat=beat)\n    time.sleep(0.2)\n"


def test_backward_passes_are_life_once_there_was_a_step(watched: Callable[..., Watched]) -> None:
    seen = watched(BEATS.format(step=3))
    assert (seen.waited_s, seen.status) == (None, 0)


def test_the_first_step_is_waited_for_whatever_else_happens(watched: Callable[..., Watched]) -> None:
    assert watched(BEATS.format(step=0)).waited_s == 1.0


@pytest.mark.parametrize("hides", ["shutil.rmtree(os.getcwd())", "os.remove(f'pid-{os.getpid()}.json')"])
def test_who_cannot_be_heard_any_more_is_not_judged(watched: Callable[..., Watched], hides: str) -> None:
    seen = watched(f"say(3); time.sleep(0.5); {hides}; time.sleep(2)")
    assert (seen.waited_s, seen.status) == (None, 0)


def test_a_script_that_does_not_end_when_it_should(
    watched: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_ENDS_WITHIN_S", 0.4)
    terminal, log = Terminal(), io.StringIO()
    seen = watched("say(8, 'done'); time.sleep(600)", stream=terminal)
    assert (seen.waited_s, seen.complete) == (1.0, True)
    said = "dptune: the recording is complete; waiting for the script to end (Ctrl-C ends it)\n"
    assert terminal.getvalue().count(said) == 1
    watched("say(8, 'done'); time.sleep(600)", stream=log)
    assert said not in log.getvalue()


@pytest.mark.parametrize(("phase", "must_end"), [("done", False), ("ended", True), ("ended", False)])
def test_a_script_that_trains_on_without_being_recorded_may_take_its_time(
    watched: Callable[..., Watched], phase: str, must_end: bool
) -> None:
    seen = watched(f"say(8, {phase!r}); time.sleep(2)", must_end)
    assert (seen.waited_s, seen.status) == (None, 0)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found through /proc")
def test_what_the_script_leaves_behind_on_purpose_is_not_ended() -> None:
    """A rank, a worker of multiprocessing, and a forked child in a session of its own, which has the same command."""
    script = (
        "import multiprocessing, os, time\n"
        "worker = multiprocessing.get_context('spawn').Process(target=time.sleep, args=(600,))\n"
        "worker.start()\n"
        "child = os.fork()\n"
        "if not child:\n    os.setsid()\nelse:\n    print(worker.pid, child, flush=True)\n"
        "time.sleep(600)\n"
    )
    entry = f"DPTUNE_TEST={os.getpid()}"
    environment = {**os.environ, **dict([entry.split("=")])}
    rank = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment, text=True)
    assert rank.stdout is not None
    worker, child = map(int, rank.stdout.readline().split())
    try:
        while not any("multiprocessing" in word for word in processes.words(worker)):
            assert processes.alive(worker)
        assert leftovers({rank.pid}, entry) >= {rank.pid, worker}
        assert child not in leftovers({rank.pid}, entry)
        rank.kill()
        rank.wait()
        assert worker in leftovers({rank.pid}, entry)
        assert not {child, rank.pid} & leftovers({rank.pid}, entry)
    finally:
        rank.kill()
        rank.wait()
        rank.stdout.close()
        os.kill(child, signal.SIGKILL)
        os.kill(worker, signal.SIGKILL)


@pytest.mark.records
@pytest.mark.parametrize("sink", [">(head -1 > /dev/null)", pytest.param("/dev/full", marks=pytest.mark.thorough)])
def test_a_stderr_that_nobody_reads_does_not_end_the_script(tmp_path: Path, sink: str) -> None:
    pytest.importorskip("torch", reason="recording needs torch")
    (tmp_path / "train.py").write_text("\n".join(line[4:] for line in PLAIN.splitlines()) + "\nprint('end')\n")
    command = " ".join([*DPTUNE, "profile", "--continue", "--run-dir", "run", *SHORT, "train.py"])
    done = run("bash", "-c", f"{command} 2> {sink}; exit $?", cwd=tmp_path)
    assert (done.status, done.out) == (0, "end\n")
    assert record_in(tmp_path / "run").ending.how == "complete"


def test_a_hang_whose_stacks_cannot_be_written(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="recording needs torch")
    (tmp_path / "train.py").write_text("import shutil, time\nshutil.rmtree('run')\ntime.sleep(600)\n")
    command = (*DPTUNE, "profile", "--run-dir", "run", "--first-step-timeout", "2", "train.py")
    done = run(*command, "--token", "s3cret", cwd=tmp_path)
    assert done.status == 2
    assert "dptune: error: no optimizer step within 2 s (rank 0: torch is not imported yet" in done.err or (
        "dptune: error: no optimizer step within 2 s (process " in done.err
    )
    assert "s3cret" not in done.err
    assert "hint: raise --first-step-timeout if the script needs longer" in done.err
    assert "Traceback" not in done.err
    assert left_behind(tmp_path / "run") == []

"""What the launcher makes of what the ranks say, and of their saying nothing. Time and the rank are played."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from dptune.capture import processes, watch
from dptune.capture.progress import ProgressLine
from dptune.capture.watch import Limits, Watch, Watched, leftovers

from .. import in_process  # noqa: TID252 - tests are no installed package
from .conftest import PLAIN, SHORT, environment
from .launching import DPTUNE, left_behind, record_in, run

LIMITS = Limits(first_step_s=1.0, stall_s=1.0)
PID = 7


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Rank:
    """A process that writes into the live folder as a rank does, at times of a clock that only waiting moves on.

    `does` is called at each look with the seconds since its start, and returns its exit status once it has ended. It
    is process, clock and signals to the watch.
    """

    def __init__(self, live: Path, does: Callable[[Rank, float], int | None]) -> None:
        self.live, self._does = live, does
        self._now_s = 0.0
        self._status: int | None = None

    def say(self, step: int, phase: str = "warm-up", beat: int = 0) -> None:
        word = {"rank": 0, "pid": PID, "step": step, "phase": phase, "where": None, "claimed": True, "beat": beat}
        (self.live / f"pid-{PID}.json").write_text(json.dumps(word))

    def poll(self) -> int | None:
        return self._status

    def monotonic(self) -> float:
        return self._now_s

    def wait(self, seconds: float, over: Callable[[], bool]) -> None:
        self._now_s += seconds
        assert self._now_s < 60, "the watch never ends"
        if self._status is None:
            self._status = self._does(self, self._now_s)


Watching = Callable[..., Watched]


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watching:
    """watched(what the rank does, must_end, stream): what the watch saw of it."""
    live = tmp_path / "live"
    live.mkdir()

    def begin(does: Callable[[Rank, float], int | None], must_end: bool = True, stream: io.StringIO | None = None):  # type: ignore[no-untyped-def]
        rank = Rank(live, does)
        monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=rank.monotonic))
        progress = ProgressLine(35, stream=stream or io.StringIO())
        return Watch(rank, live, LIMITS, progress, must_end).until_over(rank)  # type: ignore[arg-type]

    return begin


def test_a_rank_that_makes_no_step_any_more(watched: Watching) -> None:
    seen = watched(lambda rank, _: rank.say(3))
    assert (seen.waited_s, seen.steps, seen.complete) == (1.0, 3, False)


def beats(step: int) -> Callable[[Rank, float], int | None]:
    """A backward pass every 0.8 s, and no step; it ends after 4 s."""

    def does(rank: Rank, now_s: float) -> int | None:
        rank.say(step, beat=int(now_s / 0.8))
        return 0 if now_s > 4 else None

    return does


def test_backward_passes_are_life_once_there_was_a_step(watched: Watching) -> None:
    seen = watched(beats(3))
    assert (seen.waited_s, seen.status) == (None, 0)


def test_the_first_step_is_waited_for_whatever_else_happens(watched: Watching) -> None:
    assert watched(beats(0)).waited_s == 1.0


@pytest.mark.parametrize("hides", [shutil.rmtree, lambda live: (live / f"pid-{PID}.json").unlink(missing_ok=True)])
def test_who_cannot_be_heard_any_more_is_not_judged(watched: Watching, hides: Callable[[Path], None]) -> None:
    def does(rank: Rank, now_s: float) -> int | None:
        if now_s < 0.5:
            rank.say(3)
        elif rank.live.exists():
            hides(rank.live)
        return 0 if now_s > 3 else None

    seen = watched(does)
    assert (seen.waited_s, seen.status) == (None, 0)


def test_a_script_that_does_not_end_when_it_should(watched: Watching, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_ENDS_WITHIN_S", 0.4)
    terminal, log = Terminal(), io.StringIO()
    seen = watched(lambda rank, _: rank.say(8, "done"), stream=terminal)
    assert (seen.waited_s, seen.complete) == (1.0, True)
    said = "dptune: the recording is complete; waiting for the script to end (Ctrl-C ends it)\n"
    assert terminal.getvalue().count(said) == 1
    watched(lambda rank, _: rank.say(8, "done"), stream=log)
    assert said not in log.getvalue()


@pytest.mark.parametrize(("phase", "must_end"), [("done", False), ("ended", True), ("ended", False)])
def test_a_script_that_trains_on_without_being_recorded_may_take_its_time(
    watched: Watching, phase: str, must_end: bool
) -> None:
    def does(rank: Rank, now_s: float) -> int | None:
        rank.say(8, phase)
        return 0 if now_s > 3 else None

    seen = watched(does, must_end)
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
def test_a_stderr_whose_reader_has_gone_does_not_end_the_script(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="recording needs torch")
    (tmp_path / "train.py").write_text("\n".join(line[4:] for line in PLAIN.splitlines()) + "\nprint('end')\n")
    read, write = os.pipe()

    def read_a_line() -> None:
        with open(read) as lines:
            lines.readline()

    reader = threading.Thread(target=read_a_line)
    reader.start()
    words = ("profile", "--continue", "--run-dir", "run", *SHORT, "train.py")
    with open(write, "w") as stderr:
        done = in_process.recording(*words, cwd=tmp_path, env=environment(), stderr=stderr)
    reader.join()
    assert (done.returncode, done.stdout) == (0, "end\n")
    assert record_in(tmp_path / "run").ending.how == "complete"


@pytest.mark.thorough
@pytest.mark.records
@pytest.mark.parametrize("sink", [">(head -1 > /dev/null)", "/dev/full"])
def test_a_stderr_that_nobody_reads_does_not_end_the_script(tmp_path: Path, sink: str) -> None:
    pytest.importorskip("torch", reason="recording needs torch")
    (tmp_path / "train.py").write_text("\n".join(line[4:] for line in PLAIN.splitlines()) + "\nprint('end')\n")
    command = " ".join([*DPTUNE, "profile", "--continue", "--run-dir", "run", *SHORT, "train.py"])
    done = run("bash", "-c", f"{command} 2> {sink}; exit $?", cwd=tmp_path)
    assert (done.status, done.out) == (0, "end\n")
    assert record_in(tmp_path / "run").ending.how == "complete"


def test_a_hang_whose_stacks_cannot_be_written(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="recording needs torch")
    removes = "import shutil, time\nshutil.rmtree('run', ignore_errors=True)\ntime.sleep(600)\n"
    (tmp_path / "train.py").write_text(removes)
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

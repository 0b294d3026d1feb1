"""Signals while a script runs: to everyone in front of a terminal, or to dptune alone. No process stays behind."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dptune.capture import processes, watch
from dptune.capture.progress import listen

from .. import in_process  # noqa: TID252 - tests are no installed package
from .conftest import SHORT
from .launching import DPTUNE, TRAIN, Done, facts_in, left_behind, record_in, run_here, surroundings

pytestmark = [
    pytest.mark.records,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux says who sent a signal"),
]
LONG = {"STEPS": "100000", "PAUSE": "0.1"}
SHORTER = {"STEPS": "300", "PAUSE": "0.1"}
DEAF = TRAIN.replace("rank = int(", "import signal\nsignal.signal(signal.SIGINT, lambda *_: None)\nrank = int(")


@dataclass
class Started:
    process: subprocess.Popen[str]
    folder: Path

    def wait_for_step(self, step: int) -> None:
        until(lambda: any(one.step >= step for one in listen(self.folder / "live")), "a step")

    def end(self) -> tuple[int, str]:
        _, err = self.process.communicate(timeout=900)
        return self.process.returncode, err


def until(true: Callable[[], bool], what: str, seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.1)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """start(script, *options): dptune in a session of its own, without a terminal."""
    pytest.importorskip("torch", reason="recording needs torch")
    begun: list[Started] = []

    def begin(script: str, *options: str, **settings: object) -> Started:
        (tmp_path / "train.py").write_text(script)
        words = [*DPTUNE, "profile", "--run-dir", "run", *SHORT, *options, "train.py"]
        process = subprocess.Popen(
            words,
            cwd=tmp_path,
            env=surroundings(**LONG),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **settings,  # type: ignore[call-overload]
        )
        begun.append(Started(process, tmp_path / "run"))
        return begun[-1]

    yield begin
    for one in begun:
        one.process.kill()
        one.process.wait()
        assert left_behind(one.folder) == []


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [1, 2])
def test_an_interrupt_to_dptune_alone_reaches_the_script(start: Callable[..., Started], ranks: int) -> None:
    run = start(TRAIN, "--continue", *(["--nproc-per-node", "2"] if ranks == 2 else []))
    run.wait_for_step(5)
    run.process.send_signal(signal.SIGINT)
    status, err = run.end()
    assert status == 130, err
    assert "the script continues: passing the interrupt on to it" in err, f"{err}"
    assert "the script was interrupted" in err or "recorded in run" in err
    assert record_in(run.folder).ending.how == "interrupted"
    assert len(facts_in(run.folder)) == ranks


@pytest.mark.thorough
def test_before_the_first_step_too(start: Callable[..., Started]) -> None:
    run = start("import time, torch\ntime.sleep(600)\n")
    until(lambda: bool(listen(run.folder / "live")), "a process")
    run.process.send_signal(signal.SIGINT)
    status, err = run.end()
    assert status == 130
    assert "the script was interrupted before its first optimizer step" in err


def recorded_while(place: Path, script: str, acts: Callable[[int], None], *options: str) -> Done:
    """A recording in this process, of a script to whose process a thread does something once it is at step 5."""
    pytest.importorskip("torch", reason="recording needs torch")
    (place / "train.py").write_text(script)
    is_over = threading.Event()
    scripts: list[int] = []

    def act() -> None:
        until(lambda: is_over.is_set() or any(one.step >= 5 for one in listen(place / "run" / "live")), "a step")
        if not is_over.is_set():
            scripts.append(listen(place / "run" / "live")[0].pid)
            acts(scripts[0])

    thread = threading.Thread(target=act)
    thread.start()
    try:
        done = run_here("profile", "--run-dir", "run", *SHORT, *options, "train.py", cwd=place, env=SHORTER)
    except KeyboardInterrupt:
        pytest.fail("an interrupt ended the command")
    finally:
        is_over.set()
        thread.join()
    assert scripts
    assert not processes.alive(scripts[0])
    return done


def test_a_second_interrupt_ends_a_fork_that_does_not_end(tmp_path: Path) -> None:
    lived = []

    def interrupt_twice(script: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
        lived.append(processes.alive(script))
        if lived[0]:
            os.kill(os.getpid(), signal.SIGINT)

    done = recorded_while(tmp_path, DEAF, interrupt_twice, "--continue")
    assert lived == [True]
    assert done.status == 130
    assert record_in(tmp_path / "run").ending.how == "interrupted"


@pytest.mark.thorough
def test_a_second_interrupt_ends_what_does_not_end(start: Callable[..., Started]) -> None:
    run = start(DEAF, "--continue")
    run.wait_for_step(5)
    run.process.send_signal(signal.SIGINT)
    time.sleep(5)
    assert run.process.poll() is None
    run.process.send_signal(signal.SIGINT)
    status, _ = run.end()
    assert status == 130
    assert record_in(run.folder).ending.how == "interrupted"


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_dptune_to_end(start: Callable[..., Started], number: signal.Signals) -> None:
    run = start(TRAIN, "--nproc-per-node", "2", "--continue")
    run.wait_for_step(8)
    run.process.send_signal(number)
    status, err = run.end()
    assert status == 128 + number, err
    assert record_in(run.folder).ending.how == "interrupted"
    assert len(facts_in(run.folder)) == 2


@pytest.mark.thorough
def test_a_hangup_is_nothing_under_nohup(start: Callable[..., Started]) -> None:
    run = start(TRAIN, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    run.wait_for_step(2)
    run.process.send_signal(signal.SIGHUP)
    status, err = run.end()
    assert (status, record_in(run.folder).ending.how) == (0, "complete"), err


WAITS = """
import select, sys
from dptune.capture.signals import Signals
with Signals() as signals:
    signals.hold()
    print("waits", flush=True)
    found = set()
    while not select.select([sys.stdin], [], [], 0)[0]:
        found.add(signals.wait(0.2))
    print(found)
"""


def test_a_stop_from_the_terminal_is_no_signal() -> None:
    """It lasts longer than what was left of the wait, as Ctrl-Z and `fg` do."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", WAITS], text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "waits\n"
        for _ in range(3):
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            time.sleep(0.3)
            process.send_signal(signal.SIGCONT)
            time.sleep(0.3)
        process.stdin.close()
        assert process.stdout.read() == f"{ {None} }\n"


def test_a_killed_script_says_what_kills_like_that(tmp_path: Path) -> None:
    waits = TRAIN.replace("    time.sleep(", "    if step == 5: time.sleep(600)\n    time.sleep(")
    done = recorded_while(tmp_path, waits, lambda script: os.kill(script, signal.SIGKILL))
    assert done.status == 137
    assert "killed by SIGKILL, possibly by the kernel for lack of memory" in done.err
    assert record_in(tmp_path / "run").ending.note.startswith("killed by SIGKILL")


@pytest.mark.thorough
def test_a_torchrun_that_is_killed_leaves_no_rank_behind(start: Callable[..., Started]) -> None:
    run = start(TRAIN, "--nproc-per-node", "2", "--continue")
    run.wait_for_step(5)
    (agent,) = Path(f"/proc/{run.process.pid}/task/{run.process.pid}/children").read_text().split()
    os.kill(int(agent), signal.SIGKILL)
    status, _ = run.end()
    assert status == 137
    assert left_behind(run.folder) == []


def test_control_c_on_a_terminal_is_the_scripts_own(tmp_path: Path) -> None:
    """It reaches the script by itself: here one that saves for longer than dptune waits before it passes one on."""
    pytest.importorskip("torch", reason="recording needs torch")
    saves = "\nexcept KeyboardInterrupt:\n    time.sleep(3)\n    print('saved')\n    sys.exit(3)\n"
    indented = "".join(f"    {line}\n" for line in TRAIN.splitlines())
    (tmp_path / "train.py").write_text("import sys, time\ntry:\n" + indented.rstrip() + saves)
    terminal, side = pty.openpty()

    def before() -> None:
        """The terminal is that of its session; it waits 1 s, not 10, before it passes an interrupt on."""
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        watch._ENDS_WITHIN_S = 1.0

    words = ("profile", "--run-dir", "run", *SHORT, "--continue", "train.py")
    env = surroundings(**LONG, TERM="xterm")
    pid = in_process.forked(*words, streams=(side,) * 3, cwd=tmp_path, env=env, before=before).pid
    os.close(side)
    said: list[bytes] = []
    reader = threading.Thread(target=_read, args=(terminal, said), daemon=True)
    reader.start()
    try:
        until(lambda: any(one.step >= 3 for one in listen(tmp_path / "run" / "live")), "a step")
        os.write(terminal, b"\x03")
        _, status = os.waitpid(pid, 0)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    reader.join(timeout=600)
    os.close(terminal)
    text = b"".join(said).decode(errors="replace")
    assert os.waitstatus_to_exitcode(status) == 130, text
    assert "saved" in text
    assert "passing the interrupt on" not in text
    assert "waiting for the script to end" in text
    assert left_behind(tmp_path / "run") == []


def _read(terminal: int, said: list[bytes]) -> None:
    while True:
        try:
            data = os.read(terminal, 4096)
        except OSError:
            return
        if not data:
            return
        said.append(data)

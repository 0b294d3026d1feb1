"""Kind of script x ending: what is on disk, what run.json says, the exit status, and that nothing stays behind.

Every script ends in its eighth step, the first one of the light window.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from dptune.capture import processes
from dptune.capture.progress import listen
from dptune.runfile import json_files
from dptune.runfile.facts import Facts
from dptune.runfile.record import RunRecord

from .. import in_process  # noqa: TID252 - tests are no installed package
from .conftest import environment
from .kinds_of_scripts import FIRST_LIGHT_STEP, KINDS, QUIET, Kind, recording_command

pytestmark = [
    pytest.mark.records,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to see what stays behind"),
]
AT = FIRST_LIGHT_STEP + 1  # asked for at the start of the step: one light step is whole


@dataclass(frozen=True)
class Ending:
    """What the script does, on which rank (None: on all), and what must come of it.

    `statuses`: those dptune may end with; `ended`: what that rank's facts say; `light`: whether its light window is
    kept.
    """

    name: str
    rank: int | None
    how: str
    statuses: tuple[int, ...]
    ended: str
    light: bool = True


RAISE = Ending("raise", None, "failed", (1,), "raised RuntimeError")
RAISE_ONE = Ending("raise", 1, "failed", (1,), "raised RuntimeError")
EXIT = Ending("exit", None, "failed", (3,), "script-ended")
OS_EXIT = Ending("os_exit", None, "failed", (4,), "os._exit(4)")
KILL = Ending("kill", None, "failed", (137,), "recording", light=False)
KILL_ONE = Ending("kill", 1, "failed", (137,), "recording", light=False)
ABORT_ONE = Ending("abort", 1, "failed", (134,), "recording", light=False)
ABORT = Ending("abort", None, "failed", (134,), "recording", light=False)
TERMINATE = Ending("terminate", None, "failed", (143,), "SIGTERM")
TERMINATE_ONE = Ending("terminate", 1, "failed", (143,), "SIGTERM")
MEMORY = Ending("memory", None, "failed", (1,), "raised RuntimeError")

# How one process ends is seen each time in test_ending_of_one_process, test_endings, test_interrupts and
# test_sigterm_to_dptune_that_records_a_fork.
CELLS = [
    *(("plain", ending) for ending in (RAISE, EXIT, OS_EXIT, KILL, ABORT, TERMINATE, MEMORY)),
    *(("ddp", ending) for ending in (RAISE, RAISE_ONE, EXIT, OS_EXIT, KILL_ONE, ABORT_ONE, TERMINATE_ONE, MEMORY)),
    *(("fsdp2", ending) for ending in (RAISE, OS_EXIT, KILL_ONE, TERMINATE_ONE)),
    *(("hf_trainer", ending) for ending in (RAISE, OS_EXIT, KILL_ONE)),
    *(("loader_workers", ending) for ending in (RAISE, OS_EXIT, TERMINATE)),
    ("accelerate_loop", RAISE),
    # what a rank raises reaches the script that spawned it, which then fails in its own way: status 1
    ("spawn", Ending("raise", None, "failed", (1,), "script-ended")),
    ("spawn", Ending("os_exit", 1, "failed", (1,), "os._exit(4)")),
    ("spawn", Ending("kill", 1, "failed", (1,), "recording", light=False)),
]


@dataclass
class Ended:
    """A recording that has ended: its status, its words, and what was running below it at the end."""

    status: int
    out: str
    err: str
    folder: Path
    left: list[int]

    def facts(self, rank: int) -> Facts:
        return json_files.read(self.folder / f"rank-{rank:05d}.facts.json", Facts)

    @property
    def record(self) -> RunRecord:
        return json_files.read(self.folder / "run.json", RunRecord)

    def check_readable(self) -> str:
        """`dptune report` reads what there is, without a word of Python's."""
        done = in_process.dptune("report", str(self.folder), "--full")
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout


class Started:
    """A recording under way, in a session of its own as under a terminal."""

    def __init__(self, kind: Kind, folder: Path, *options: str, **env: str) -> None:
        self._folder = folder
        self._mark = f"{os.getpid()}-{time.monotonic_ns()}"
        self._out, self._err = folder / "out", folder / "err"
        with open(self._out, "w") as out, open(self._err, "w") as err:
            self.process = subprocess.Popen(
                recording_command(kind, folder / "run", *options),
                cwd=folder,
                env=environment(**QUIET, **kind.env, **env, DPTUNE_TEST_MARK=self._mark),
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def wait_for_words(self, words: str) -> None:
        deadline = time.monotonic() + 600
        while words not in self._out.read_text() and self.process.poll() is None:
            assert time.monotonic() < deadline, f"never said {words!r}: {self._err.read_text()}"
            time.sleep(0.05)

    def end(self) -> Ended:
        try:
            status = self.process.wait(900)
        finally:
            left = self._living()
            for pid in left:
                os.kill(pid, signal.SIGKILL)
        return Ended(status, self._out.read_text(), self._err.read_text(), self._folder / "run", left)

    def _living(self) -> list[int]:
        """Everything that still runs with this test's mark in its environment, wherever it was reparented to."""
        deadline = time.monotonic() + 300  # what was told to end may need a moment
        while found := [pid for pid in _processes() if self._marked(pid)]:
            if time.monotonic() > deadline:
                return found
            time.sleep(0.1)
        return []

    def _marked(self, pid: int) -> bool:
        try:
            return f"DPTUNE_TEST_MARK={self._mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def check_kept(ended: Ended, ending: Ending, rank: int) -> None:
    facts = ended.facts(rank)
    assert facts.ended == ending.ended
    untraced = facts.window("untraced")
    assert untraced is not None
    assert (untraced.complete, untraced.steps) == (True, 4)
    trace = ended.folder / f"rank-{rank:05d}.trace.json.gz"
    assert trace.exists() == ending.light
    if ending.light:
        light = facts.window("light")
        assert light is not None
        assert (light.complete, light.steps) == (False, 1)
    assert not list(ended.folder.glob("*.part"))
    assert not (ended.folder / "live").exists()


thorough = pytest.mark.thorough


@thorough
@pytest.mark.parametrize(
    ("name", "ending"), [pytest.param(name, e, id=f"{name}-{e.name}-{e.rank or 0}") for name, e in CELLS]
)
def test_ending(name: str, ending: Ending, tmp_path: Path) -> None:
    kind = KINDS[name]
    kind.check_installed()
    ended = Started(kind, tmp_path, **asked_of(ending)).end()
    assert ended.left == []
    check_ending(ended, ending)


@pytest.mark.parametrize("ending", [EXIT, OS_EXIT], ids=["exit", "os_exit"])  # RAISE: test_endings
def test_ending_of_one_process(ending: Ending, tmp_path: Path) -> None:
    """It starts no other, so that nothing can stay behind: a fork."""
    kind, folder = KINDS["plain"], tmp_path / "run"
    words = recording_command(kind, folder)[3:]  # after `python -m dptune`
    done = in_process.recording(*words, cwd=tmp_path, env=environment(**QUIET, **asked_of(ending)))
    check_ending(Ended(done.returncode, done.stdout, done.stderr, folder, []), ending)


def asked_of(ending: Ending) -> dict[str, str]:
    """The variables by which a script of kinds/ knows how to end."""
    asked = {"ENDING": ending.name, "ENDING_AT": str(AT)}
    return asked if ending.rank is None else {**asked, "ENDING_RANK": str(ending.rank)}


def check_ending(ended: Ended, ending: Ending) -> None:
    assert ended.status in ending.statuses, ended.err
    assert ended.record.ending.how == ending.how
    assert ended.record.ending.exit_status == ended.status
    check_kept(ended, ending, ending.rank or 0)
    told = " ".join(ended.check_readable().split())
    assert "the script failed" in told.lower()
    assert ("was killed or crashed" in told) == (ending.ended == "recording")


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["plain", "ddp", "spawn", "lightning_fit"])
def test_shorter_than_the_windows(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    kind.check_installed()
    short = Kind(kind.name, kind.launched, kind.ranks, (*kind.arguments, "--steps", str(FIRST_LIGHT_STEP)))
    ended = Started(short, tmp_path).end()
    assert (ended.status, ended.left) == (0, []), ended.err
    assert ended.record.ending.how == "script-ended"
    assert "the script ended before all windows were full" in ended.err
    for rank in range(kind.ranks):
        light = ended.facts(rank).window("light")
        assert light is not None
        assert light.steps == 1
    ended.check_readable()


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["plain", "ddp", "spawn", "fsdp2", "hf_trainer", "lightning_fit", "forked"])
def test_ctrl_c(name: str, tmp_path: Path) -> None:
    """A terminal sends SIGINT to dptune and to everything it started."""
    kind = KINDS[name]
    kind.check_installed()
    started = Started(kind, tmp_path, "--continue", ENDING="say", ENDING_AT=str(AT))
    started.wait_for_words(f"at step {AT}")
    os.killpg(started.process.pid, signal.SIGINT)
    ended = started.end()
    assert ended.status in (130, 1), ended.err
    assert ended.left == []
    assert ended.record.ending.how == "interrupted"
    assert ended.facts(0).window("untraced").complete  # type: ignore[union-attr]
    assert (ended.folder / "rank-00000.trace.json.gz").exists()
    ended.check_readable()


def test_sigterm_to_dptune_that_records_a_fork(tmp_path: Path) -> None:
    """As soon as the first step of the light window is over: in the next one the script waits."""
    kind, folder, is_over, sent = KINDS["plain"], tmp_path / "run", threading.Event(), []

    def end() -> None:
        while not is_over.wait(0.05):
            if not sent and any(rank.step >= FIRST_LIGHT_STEP for rank in listen(folder / "live")):
                sent.append(signal.SIGTERM)
                os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda *_: None)  # for one that comes too late
    thread = threading.Thread(target=end)
    thread.start()
    try:
        words = recording_command(kind, folder, "--continue")[3:]  # after `python -m dptune`
        env = environment(**QUIET, ENDING="blocked", ENDING_AT=str(AT))
        done = in_process.recording(*words, cwd=tmp_path, env=env)
    finally:
        is_over.set()
        thread.join()
        signal.signal(signal.SIGTERM, before)
    check_ended_by_sigterm(kind, Ended(done.returncode, done.stdout, done.stderr, folder, []))


@thorough
@pytest.mark.parametrize("name", ["plain", "ddp", "spawn", "forked", "fsdp2"])
def test_sigterm_to_dptune(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    started = Started(kind, tmp_path, "--continue", ENDING="say", ENDING_AT=str(AT))
    started.wait_for_words(f"at step {AT}")
    os.kill(started.process.pid, signal.SIGTERM)
    check_ended_by_sigterm(kind, started.end())


def check_ended_by_sigterm(kind: Kind, ended: Ended) -> None:
    assert (ended.status, ended.left) == (143, []), ended.err
    assert ended.record.ending.how == "interrupted"
    told = [ended.facts(rank).ended for rank in range(kind.ranks)]
    if kind.ranks == 1:  # several may fail at each other's going before the signal is seen, or before that is written
        assert told == ["SIGTERM"]
    assert set(told) <= {"SIGTERM", "script-ended", "raised RuntimeError", "recording"}
    assert set(told) != {"recording"}
    for rank in range(kind.ranks):
        assert (ended.folder / f"rank-{rank:05d}.trace.json.gz").exists()
    ended.check_readable()


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["ddp", "fsdp2"])
def test_sigterm_to_a_rank_that_is_blocked_in_a_collective(name: str, tmp_path: Path) -> None:
    """Python cannot run its handler there; the open window is saved even so, and the rank dies of the signal."""
    started = Started(KINDS[name], tmp_path, "--continue", ENDING="blocked", ENDING_AT=str(AT), ENDING_RANK="1")
    started.wait_for_words("rank 1 is blocked")
    time.sleep(2)  # rank 0 runs into the collective that rank 1 never joins
    blocked = json_files.read(tmp_path / "run" / "rank-00000.facts.json", Facts).pid
    assert blocked in processes.descendants(started.process.pid)
    os.kill(blocked, signal.SIGTERM)
    ended = started.end()
    assert (ended.status, ended.left) == (143, []), ended.err
    facts = ended.facts(0)
    light = facts.window("light")
    assert light is not None
    assert (facts.ended, light.steps, light.trace) == ("SIGTERM", 1, "rank-00000.trace.json.gz")
    ended.check_readable()

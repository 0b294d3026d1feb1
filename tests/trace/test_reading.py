"""Several traces at once: by processes of dptune's own, or by any executor that is passed in."""

import errno
import gzip
import os
import re
import shutil
import signal
import subprocess
import sys
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing import get_context

import pytest

from dptune.errors import RunError
from dptune.measure import measure
from dptune.trace import load
from dptune.trace.loading import reading
from dptune.trace.loading.workers import workers

from .conftest import RUNS

SOURCE = RUNS / "unused-gradients-mended"  # 715 events a rank


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Eight ranks, made of recordings of two."""
    folder = tmp_path_factory.mktemp("eight")
    traces = sorted(SOURCE.glob("rank-0000?.trace.json.gz"))
    for rank in range(8):
        text = gzip.decompress(traces[rank % len(traces)].read_bytes())
        text, replaced = re.subn(rb'"rank": \d+, "world_size": \d+', b'"rank": %d, "world_size": 8' % rank, text)
        assert replaced == 1
        (folder / f"trace_{rank}.json.gz").write_bytes(gzip.compress(text, 1))
    return folder


@pytest.fixture
def eight(made, tmp_path):
    return shutil.copytree(made, tmp_path, dirs_exist_ok=True)


def told(run):
    return {rank.rank: (rank.source, rank.light.events, rank.light.columns.names) for rank in run.ranks}


class Here(Executor):
    """The least that is an executor."""

    def __init__(self):
        self.calls = 0

    def submit(self, function, /, *args, **kwargs):
        self.calls += 1
        future = Future()
        future.set_result(function(*args, **kwargs))
        return future


def test_any_executor_gives_the_same_run(eight):
    alone = load([eight])
    here = Here()
    assert told(load([eight], executor=here)) == told(alone)
    assert here.calls == 8
    with ThreadPoolExecutor(3) as threads:
        assert told(load([eight], executor=threads)) == told(alone)
    with ProcessPoolExecutor(2, get_context("forkserver")) as processes:
        run = load([eight], executor=processes)
    assert told(run) == told(alone)
    first_two = (replace(each, ranks=each.ranks[:2]) for each in (run, alone))
    assert measure(next(first_two)) == measure(next(first_two))


def test_processes_of_its_own(eight, monkeypatch):
    monkeypatch.setattr(reading, "LEAST_BYTES", 0)
    seen = []
    run = load([eight], jobs=2, progress=lambda *call: seen.append(call))
    assert told(run) == told(load([eight]))
    size = sum(path.stat().st_size for path in eight.iterdir())
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert (seen[0][1], seen[-1][1], {total for _, _, total in seen}) == (0, size, {size})
    assert seen[-1][0].startswith("8 of 8 traces: ")


def test_few_bytes_are_read_here(eight, monkeypatch):
    monkeypatch.setattr(reading, "workers", lambda *_: pytest.fail("processes were started"))
    assert len(load([eight], jobs=2).ranks) == 8
    monkeypatch.setattr(reading, "LEAST_BYTES", 0)
    assert len(load([eight / "trace_0.json.gz"], jobs=2).ranks) == 1
    assert len(load([eight], jobs=1).ranks) == 8


def test_a_file_that_cannot_be_read_is_a_finding_and_the_others_are_there(eight):
    (eight / "trace_3.json.gz").write_text("<html>")
    with ThreadPoolExecutor(2) as threads:
        run = load([eight], executor=threads)
    assert len(run.ranks) == 7
    assert any("looks like a web page" in finding.text for finding in run.findings)


class Dying(Here):
    """An executor whose second call takes its process with it."""

    def __init__(self, pool):
        super().__init__()
        self.pool = pool

    def submit(self, function, /, *args, **kwargs):
        self.calls += 1
        if self.calls == 2:
            return self.pool.submit(_die)
        return self.pool.submit(function, *args, **kwargs)


def _die():
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_of_a_given_executor_that_was_killed_is_one_sentence(eight):
    with (
        ProcessPoolExecutor(2, get_context("forkserver")) as pool,  # a fork of a process with threads may hang
        pytest.raises(
            RunError, match=r"a process that read traces died: A process .* was terminated abruptly"
        ) as raised,
    ):
        load([eight], executor=Dying(pool))
    assert "jobs=1" in raised.value.hint


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ((os.kill, 0, signal.SIGKILL), "was killed, most likely because it ran out of memory"),
        ((os.kill, 0, signal.SIGABRT), f"died of signal {int(signal.SIGABRT)}"),
        ((os.kill, 0, signal.SIGTERM), f"died of signal {int(signal.SIGTERM)}"),
        ((os._exit, 3), "ended with exit status 3"),
    ],
)
def test_of_a_process_of_its_own_that_died_how_it_ended_is_said(ending, said):
    with pytest.raises(RunError, match=f"^a process that read traces {said}$") as raised, workers(2, None) as pool:
        pool.submit(_end, *ending).result()
    assert "jobs=1" in raised.value.hint


def _end(how, *arguments):
    how(*(os.getpid() if argument == 0 else argument for argument in arguments))


def test_a_script_that_workers_cannot_import_is_told_of_its_guard(tmp_path):
    (tmp_path / "read.py").write_text(
        "from dptune.trace.loading.workers import workers\n"
        "with workers(2, None) as pool:\n    pool.submit(print).result()\n"
    )
    done = subprocess.run([sys.executable, "read.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "RunError: a process that read traces ended with exit status 1: it imports " in last
    assert last.endswith('read.py, which has no `if __name__ == "__main__":`')


def test_a_process_that_died_before_all_was_asked_is_one_sentence(eight):
    class Broken(Here):
        def submit(self, function, /, *args, **kwargs):
            raise BrokenProcessPool("a process died")

    with pytest.raises(RunError, match=r"a process that read traces died: a process died$"):
        load([eight], executor=Broken())


def test_without_semaphores_it_is_read_here(eight, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(reading, "LEAST_BYTES", 0)
    monkeypatch.setattr(reading, "workers", refuse)
    assert len(load([eight], jobs=2).ranks) == 8


ENDLESS = """
import signal, sys, threading, time
from pathlib import Path
from dptune.commands.shared.ending import ending
from dptune.trace.loading import handover, workers

def read(folder):
    Path(folder, "written").touch()
    time.sleep(600)

if __name__ == "__main__":
    handover.MEMORY = Path(sys.argv[1])
    handover.LEAST_ROOM_BYTES = 0
    with ending(), handover.folder() as shared, workers.workers(2, shared) as pool:
        asked = [pool.submit(read, shared) for _ in range(20)]
        while not Path(shared, "written").exists():
            time.sleep(0.01)
        print("reading", flush=True)
        asked[0].result()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", pytest.param("SIGHUP", marks=pytest.mark.thorough), "SIGKILL"])
def test_workers_end_with_the_process_that_asked(tmp_path, name):
    """Each of their calls takes ten minutes, and stdout ends when the last of them has."""
    (tmp_path / "memory").mkdir()
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "memory")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout.readline() == "reading\n"
    process.send_signal(getattr(signal, name))
    process.communicate(timeout=900)
    ends = {"SIGINT": (1, -signal.SIGINT), "SIGTERM": (143,), "SIGHUP": (129,), "SIGKILL": (-signal.SIGKILL,)}
    assert process.returncode in ends[name]
    assert list((tmp_path / "memory").iterdir()) == []


def test_an_interrupt_waits_for_no_trace(eight):
    """What was not begun is cancelled."""
    with ThreadPoolExecutor(1) as threads:
        seen = []

        def stop(what, done, _total):
            seen.append(what)
            if done:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            load([eight], executor=threads, progress=stop)
        assert len(seen) == 2

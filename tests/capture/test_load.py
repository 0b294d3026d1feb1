"""CPU time of the job and of the whole machine around a window, and how long the job's threads waited for a core."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from dptune.capture.injected.observe import load
from dptune.capture.injected.observe.load import Reading, Waits
from dptune.capture.injected.observe.stolen_time import Ticks
from dptune.runfile import json_files
from dptune.runfile.facts import Facts
from dptune.runfile.load import LoadFacts
from dptune.runfile.window import Window

from .conftest import PLAIN, SHORT

S = 10**9


def test_what_was_used_between_two_readings():
    first = Reading(0, 40 * S, 5 * S, Waits({"7": 3 * S, "8": S}, {"7": 100, "8": 0}, "7"), 12)
    later = Reading(2 * S, 43 * S, 6 * S, Waits({"7": 4 * S, "9": S}, {"7": 600, "9": 50}, "7"), 15)
    found = first.until(later)
    assert (found.wall_ns, found.machine_ns, found.job_ns, found.preempted) == (2 * S, 3 * S, S, 3)
    assert (found.ran_ns, found.waited_ns, found.training_waited_ns) == (2 * S, 550, 500)  # thread 9 is new, 8 ended


def test_a_window_too_short_for_ticks_tells_nothing_and_what_a_system_lacks_is_missing():
    lacking = Reading(0, None, None, None, None)
    assert lacking.until(Reading(S // 10, 1, 1, None, None)) is None
    found = lacking.until(Reading(S, 1, 1, None, None))
    assert (found.machine_ns, found.job_ns, found.waited_ns, found.preempted) == (None, None, None, None)


def proc(tmp_path, monkeypatch, processes, tasks):
    """A /proc with these processes (parent; ticks of user, system, and both of children) and threads of this one."""
    for number, (parent, *ticks) in processes.items():
        (tmp_path / str(number)).mkdir()
        fields = ["S", str(parent), *["0"] * 9, *map(str, ticks), "20", "0"]
        (tmp_path / str(number) / "stat").write_text(f"{number} (py) thon) {' '.join(fields)}\n")
    (tmp_path / "self").symlink_to("100", target_is_directory=True)
    for thread, text in tasks.items():
        (tmp_path / "100" / "task" / thread).mkdir(parents=True)
        (tmp_path / "100" / "task" / thread / "schedstat").write_text(text)
    monkeypatch.setattr(load, "_PROC", tmp_path)
    monkeypatch.setattr(load.os, "getpid", lambda: 100)
    monkeypatch.setattr(load.os, "sysconf", lambda _: 100)
    monkeypatch.setattr(load.threading, "get_native_id", lambda: 100)
    monkeypatch.setattr(load.time, "process_time_ns", lambda: 7 * S)
    monkeypatch.setattr(load.Ticks, "now", classmethod(lambda cls: Ticks(5_000, 0)))


def test_children_of_this_process_are_of_the_job_and_other_processes_are_not(tmp_path, monkeypatch):
    processes = {
        1: (0, 900, 90, 9, 9),
        100: (1, 600, 100, 30, 10),  # children that have ended: 0.4 s
        101: (100, 50, 50, 0, 0),  # a loader worker: 1 s
        102: (101, 100, 0, 50, 0),  # which started another: 1.5 s
        103: (1, 400, 0, 0, 0),
    }
    proc(tmp_path, monkeypatch, processes, {"100": "5 6 7\n", "110": "50 60 7\n"})
    found = Reading.now()
    assert found.machine_ns == 50 * S
    assert found.job_ns == 7 * S + 400_000_000 + S + 1_500_000_000
    assert found.waits == Waits({"100": 5, "110": 50}, {"100": 6, "110": 60}, "100")


def test_a_kernel_without_schedstat_still_counts_cpu_time(tmp_path, monkeypatch):
    proc(tmp_path, monkeypatch, {100: (1, 0, 0, 0, 0)}, {})
    found = Reading.now()
    assert (found.waits, found.job_ns) == (None, 7 * S)


def test_elsewhere_psutil_counts_where_it_is_installed(tmp_path, monkeypatch):
    times = SimpleNamespace(user=10.0, system=5.0, idle=99.0, nice=1.0)
    child = SimpleNamespace(cpu_times=lambda: (2.0, 1.0, 0.0, 0.0))
    process = SimpleNamespace(children=lambda recursive: [child])
    monkeypatch.setattr(load, "_PROC", tmp_path)
    monkeypatch.setattr(load.time, "process_time_ns", lambda: 7 * S)
    installed = SimpleNamespace(cpu_times=lambda: times, Process=lambda: process)
    monkeypatch.setitem(sys.modules, "psutil", installed)
    found = Reading.now()
    assert (found.machine_ns, found.job_ns, found.waits) == (16 * S, 10 * S, None)
    monkeypatch.setitem(sys.modules, "psutil", None)  # not installed
    found = Reading.now()
    assert (found.machine_ns, found.job_ns) == (None, None)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_child_that_computes_counts_for_the_job_on_this_machine():
    before = Reading.now()
    spin = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", spin], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        time.sleep(max(0.0, 0.3 - (time.perf_counter_ns() - before.wall_ns) / S))
        found = before.until(Reading.now())
        child.stdin.close()
    assert found.job_ns >= 250_000_000
    assert found.machine_ns >= found.job_ns - 100_000_000


@pytest.mark.records
def test_a_recording_holds_the_load_and_what_was_taken_and_an_older_one_does_not(profile):
    slow = PLAIN.replace("optimizer.zero_grad()", "optimizer.zero_grad(); __import__('time').sleep(0.1)")
    assert slow != PLAIN
    run = profile(slow, *SHORT)
    events = json.loads(gzip.decompress((run.folder / "rank-00000.detail.trace.json.gz").read_bytes()))["traceEvents"]
    (step,) = (event for event in events if event["name"].startswith("ProfilerStep#"))
    read = [event["ts"] for event in events if "observe/load.py" in event["name"]]
    assert read  # the reading at the window's end, and no traced step has either
    assert min(read) >= step["ts"] + step["dur"]
    path = run.folder / "rank-00000.facts.json"
    found = json_files.read(path, Facts).window("untraced").load
    assert found.wall_ns >= 300_000_000
    assert found.cores >= 1
    older = json.loads(path.read_text())
    taken = [window["taken_share"] for window in older["windows"]]
    assert all(share is None or 0 <= share < 1 for share in taken)
    assert [window.taken_share for window in json_files.read(path, Facts).windows] == taken
    for window in older["windows"]:
        del window["load"]
    path.write_text(json.dumps(older))
    assert json_files.read(path, Facts).window("untraced").load is None


def test_load_is_read_back_as_it_was_written(tmp_path):
    facts = Facts(rank=0, windows=[Window("light", 3, load=LoadFacts(5, 2, 3, 2, 2, 1, 1, 4))])
    json_files.write(tmp_path / "facts.json", facts)
    assert json_files.read(tmp_path / "facts.json", Facts) == facts

"""`dptune profile` knows the links between the ranks it recorded: measured, reused, left out, failed, interrupted.

One recording of two ranks is made; what follows it works on copies of its folder.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from dptune.capture import interpreter, launch, link_cache, links, processes
from dptune.capture.conclusion import facts_in
from dptune.capture.launch import Launch, Script
from dptune.capture.session import Recording
from dptune.capture.torchrun import Torchrun
from dptune.cli import main
from dptune.commands.shared import run_links
from dptune.measure.communication.links import fitted
from dptune.runfile import json_files
from dptune.runfile.links import LinkRecord
from dptune.runfile.record import Ending, RunRecord

from .. import forks  # noqa: TID252 - tests are no installed package
from .conftest import PLAIN, WITHOUT_COMPILER, Run
from .launching import DPTUNE, TRAIN, left_behind, run_here, surroundings

pytestmark = pytest.mark.records
WINDOWS = ("--warmup", "2", "--untraced", "4", "--light", "3", "--detailed", "0", "--nproc-per-node", "2")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which two ranks were recorded without their links."""
    pytest.importorskip("torch", reason="recording needs torch")
    place = tmp_path_factory.mktemp("recorded")
    (place / "train.py").write_text(TRAIN)
    done = run_here("profile", "-q", "--no-links", "--run-dir", "run", *WINDOWS, "train.py", cwd=place)
    assert done.status == 0, done.err
    assert "measur" not in done.err
    assert not (place / "run" / "links.json").exists()
    return place / "run"


@pytest.fixture
def made(recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recording:
    """A copy of it as just made, and a cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(WITHOUT_COMPILER))
    monkeypatch.setattr(run_links, "LIMIT_S", 100.0)  # other processes may take long what takes these a second
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "dptune-runs" / "run"
    shutil.copytree(recorded, folder)
    return Recording(folder, Ending("complete", 0), [0, 1], complete=True)


@pytest.fixture
def started() -> Launch:
    return launch.under_torchrun(Script("train.py"), interpreter.choose(sys.executable), Torchrun(nproc_per_node=2))


def sweep_script(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> Path:
    """Let sweeps run this in place of the ranks' script."""
    path = folder / "sweep.py"
    path.write_text(text)
    monkeypatch.setattr(links, "_SCRIPT", path)
    return path


def reason(made: Recording) -> str:
    return json_files.read(made.folder / "run.json", RunRecord).links_unmeasured


def known(made: Recording) -> LinkRecord:
    return json_files.read(made.folder / "links.json", LinkRecord)


NOW = datetime.now().astimezone().replace(microsecond=0)


def beside(made: Recording, hours: float = 0) -> LinkRecord:
    """A sweep of its links, so many hours before now, up to 16 MiB; it fits well."""
    host = facts_in(made.folder)[0].host
    took = [(4096 * 8**step, 1e-4 + 1e-9 * 4096 * 8**step) for step in range(5)]
    sizes = [links.SizeTimes(size, seconds, seconds, seconds, 3, 6) for size, seconds in took]
    return fitted(
        LinkRecord(
            **{"backend": "gloo", "world_size": 2, "hosts": [host] * 2},
            measured=(NOW - timedelta(hours=hours)).isoformat(),
            kinds=[links.KindTimes("all_reduce", [0, 1], sizes)],
        )
    )


def test_they_are_measured_once_and_reused(
    made: Recording,
    started: Launch,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(links.subprocess, "Popen", forks.popen)
    outcome = run_links.find(made, started, quiet=False)
    assert outcome.line.startswith("links measured in "), outcome
    assert "measuring the links between 2 ranks, 100 s at most (--no-links skips this)" in capsys.readouterr().err
    first = known(made)
    assert (first.backend, first.world_size, [kind.kind for kind in first.kinds]) == ("gloo", 2, ["all_reduce"])
    assert first.hosts == [facts_in(made.folder)[0].host] * 2
    assert first.kinds[0].fit is not None, first
    assert reason(made) == ""

    cache = tmp_path / "cache" / "dptune" / "links"
    first.kinds[0].fit.confidence = "high"  # whatever else the machine computes now
    link_cache.store(facts_in(made.folder)[0], first)
    other = replace(made, folder=tmp_path / "elsewhere" / "run")
    shutil.copytree(made.folder, other.folder, ignore=shutil.ignore_patterns("links.json"))
    outcome = run_links.find(other, started, quiet=False)
    assert outcome.line == f"links were measured at {first.measured}; `dptune links` measures them again"
    assert known(other) == first
    assert capsys.readouterr().err == ""

    (kept,) = cache.iterdir()
    hours_ago = datetime.fromisoformat(json_files.read(made.folder / "run.json", RunRecord).recorded) - timedelta(
        hours=3
    )
    json_files.write(other.folder / "links.json", replace(first, measured=hours_ago.isoformat()))
    assert main(["report", "--full", "--no-cache", str(other.folder)]) == 0
    assert "3 hours before this run." in " ".join(capsys.readouterr().out.split())

    facts = json_files.read(other.folder / "rank-00000.facts.json", type(facts_in(other.folder)[0]))
    facts.environment["GLOO_SOCKET_IFNAME"] = "lo"
    json_files.write(other.folder / "rank-00000.facts.json", facts)
    (other.folder / "links.json").unlink()
    again = replace(first, measured=hours_ago.isoformat())
    monkeypatch.setattr(links, "sweep", lambda *_: again)
    assert run_links.find(other, started, quiet=True).line.startswith("links measured in "), "another interface"
    assert known(other).measured == again.measured
    assert run_links.find(made, started, quiet=True) == run_links.Outcome(), "its folder has them"
    assert kept.exists()


def test_what_lies_beside_the_run_is_known(made: Recording, started: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "sweep", lambda *_: pytest.fail("nothing is to be measured"))
    json_files.write(made.folder.parent / "links.json", beside(made))
    assert run_links.find(made, started, quiet=False) == run_links.Outcome()
    assert not (made.folder / "links.json").exists()


def test_old_ones_are_measured_again(made: Recording, started: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those beside the run, and those that were kept."""
    json_files.write(made.folder.parent / "links.json", beside(made, hours=26))
    link_cache.store(facts_in(made.folder)[0], beside(made, hours=2))
    now = beside(made)
    monkeypatch.setattr(links, "sweep", lambda *_: now)
    assert run_links.find(made, started, quiet=True).line.startswith("links measured in ")
    assert known(made).measured == now.measured

    (made.folder / "links.json").unlink()
    monkeypatch.setattr(links, "sweep", lambda *_: pytest.fail("what was just measured is kept"))
    assert run_links.find(made, started, quiet=True).line.startswith("links were measured at ")


def test_old_ones_stay_where_they_cannot_be_measured(
    made: Recording, started: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep_script(monkeypatch, tmp_path, FAILS)
    link_cache.store(facts_in(made.folder)[0], beside(made, hours=26))
    said = "the links of this run were measured 26 hours ago; measuring them again failed: "
    said += "rank 1: RuntimeError: no route to host"
    assert run_links.find(made, started, quiet=True).lines == [said]
    assert known(made) == beside(made, hours=26)
    assert reason(made) == ""

    (made.folder / "links.json").unlink()
    json_files.write(made.folder.parent / "links.json", beside(made, hours=50))
    said = "the links of this run were measured 2 days ago; measuring them again failed: "
    said += "rank 1: RuntimeError: no route to host"
    assert run_links.find(made, started, quiet=True).lines == [said]
    assert not (made.folder / "links.json").exists()
    monkeypatch.setattr(run_links, "_all_here", lambda *_: False)  # on several hosts
    (line,) = run_links.find(made, started, quiet=True).lines
    said = "the links of this run were measured 2 days ago; measuring them again failed: not all ranks are known to "
    assert line.startswith(f"{said}have run on this")
    assert line.endswith("measure them with `dptune links` on the same hosts")


@pytest.mark.thorough
def test_those_of_other_hosts_beside_the_run_are_not(made: Recording, started: Launch, tmp_path: Path) -> None:
    sizes = [links.SizeTimes(4096 * 8**step, 1e-4 * 8**step, 1e-4 * 8**step, 1e-4 * 8**step, 3, 6) for step in range(3)]
    others = LinkRecord(
        backend="gloo", world_size=2, hosts=["a", "b"], kinds=[links.KindTimes("all_reduce", [0, 1], sizes)]
    )
    json_files.write(made.folder.parent / "links.json", others)
    assert run_links.find(made, started, quiet=True).line.startswith("links measured in ")


FAILS = 'import os, sys; print("dptune: rank 1: RuntimeError: no route to host", file=sys.stderr); os._exit(1)'
HANGS = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


@pytest.mark.parametrize(
    ("script", "limit_s", "why"),
    [
        (FAILS, 100.0, "rank 1: RuntimeError: no route to host"),
        (HANGS, 2.0, "the ranks did not start within 2 s"),
        ("", 100.0, "the ranks ended before the first measurement"),
    ],
)
def test_a_sweep_that_fails_or_hangs_leaves_its_reason_and_the_recording(
    made: Recording,
    started: Launch,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    limit_s: float,
    why: str,
) -> None:
    monkeypatch.setattr(run_links, "LIMIT_S", limit_s)
    path = sweep_script(monkeypatch, tmp_path, script)
    before = {file.name: file.read_bytes() for file in made.folder.iterdir() if file.name != "run.json"}
    outcome = run_links.find(made, started, quiet=True)
    assert why in outcome.unmeasured
    remedy = "to measure them, run `dptune links` on the same hosts"
    assert outcome.lines == [f"links not measured: {outcome.unmeasured}; {remedy}"]
    assert reason(made) == outcome.unmeasured
    assert {file.name: file.read_bytes() for file in made.folder.iterdir() if file.name != "run.json"} == before
    assert json_files.read(made.folder / "run.json", RunRecord).ending.how == "complete"
    assert not [one for one in Path("/proc").glob("[0-9]*") if str(path) in processes.words(int(one.name))]


def test_the_report_says_why_they_are_unknown(
    made: Recording,
    started: Launch,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sweep_script(monkeypatch, tmp_path, FAILS)
    run_links.find(made, started, quiet=True)
    assert main(["report", "--full", "--no-cache", str(made.folder)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "the links between ranks were not measured: rank 1: RuntimeError: no route to host; to measure them" in said


@pytest.mark.parametrize("launcher", ["several nodes", "once per rank", "another host"])
@pytest.mark.thorough
def test_where_ranks_cannot_be_started_alike_that_is_said(made: Recording, started: Launch, launcher: str) -> None:
    from dptune.capture.job import Job

    if launcher == "several nodes":
        python = interpreter.choose(sys.executable)
        started = launch.under_torchrun(Script("train.py"), python, Torchrun(nproc_per_node=1, nnodes=2))
        facts_of_one = made.folder / "rank-00001.facts.json"
        facts_of_one.unlink()
    elif launcher == "once per rank":
        started = launch.as_rank(Script("train.py"), interpreter.choose(sys.executable), Job(0, 2, 2, "job"))
    else:
        for rank, facts in enumerate(facts_in(made.folder)):
            facts.host = "elsewhere"
            json_files.write(made.folder / f"rank-{rank:05d}.facts.json", facts)
    outcome = run_links.find(made, started, quiet=True)
    assert "measure them with `dptune links`" in outcome.unmeasured
    assert ("once per rank" in outcome.unmeasured) == (launcher == "once per rank")
    assert reason(made) == outcome.unmeasured


INTERRUPTS = """
import os, signal, time
with open("sweep.pid", "w") as file:
    file.write(str(os.getpid()))
os.kill(os.getppid(), signal.SIGINT)
time.sleep(600)
"""


def test_ctrl_c_during_the_sweep_keeps_the_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    sweep_script(monkeypatch, tmp_path, INTERRUPTS)
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    try:
        done = run_here("profile", "--run-dir", "run", *WINDOWS, "train.py", cwd=tmp_path, env=env)
    except KeyboardInterrupt:
        pytest.fail("the interrupt ended the command")
    check_interrupted(tmp_path, done.status, done.err)
    assert not processes.alive(int((tmp_path / "sweep.pid").read_text()))


@pytest.mark.thorough
def test_ctrl_c_during_the_sweep_of_a_started_command(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    words = [*DPTUNE, "profile", "--run-dir", "run", *WINDOWS, "train.py"]
    env = surroundings(XDG_CACHE_HOME=str(tmp_path / "cache"))
    said = []
    with subprocess.Popen(words, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            said.append(line)
            if "measuring the links" in line:
                process.send_signal(signal.SIGINT)
    check_interrupted(tmp_path, process.returncode, "".join(said))
    assert left_behind(tmp_path / "run") == []


def check_interrupted(place: Path, status: int, err: str) -> None:
    assert status == 130
    said = err.splitlines(keepends=True)
    again = "to measure them, run `dptune links` on the same hosts"
    assert f"dptune: links not measured: interrupted; {again}\n" in said
    assert said[-1] == "dptune: next: dptune report run\n"
    record = json_files.read(place / "run" / "run.json", RunRecord)
    assert (record.ending.how, record.links_unmeasured) == ("complete", "interrupted")
    assert [facts.ended for facts in facts_in(place / "run")] == ["complete"] * 2
    assert not (place / "run" / "links.json").exists()


def test_one_process_has_no_links(profile: Callable[..., Run], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PLAIN.replace("\n    ", "\n"))
    words = (
        "profile",
        "--run-dir",
        "run",
        "--warmup",
        "1",
        "--untraced",
        "3",
        "--light",
        "3",
        "--detailed",
        "0",
        "train.py",
    )
    done = run_here(*words, cwd=tmp_path, env={"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert done.status == 0, done.err
    assert "links" not in done.err
    assert not (tmp_path / "run" / "links.json").exists()
    with contextlib.suppress(FileNotFoundError):
        assert list((tmp_path / "cache").iterdir()) == []

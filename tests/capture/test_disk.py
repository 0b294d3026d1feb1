"""A recording that does not fit is refused before anything is made; where room runs out later, that is what is said."""

from __future__ import annotations

import os
import shutil
import subprocess
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dptune.advise.trust import recording
from dptune.capture import disk
from dptune.runfile import json_files
from dptune.runfile.record import Ending, RunRecord, Schedule

from .conftest import SHORT, Run
from .launching import TRAIN, facts_in, record_in, run_here


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MB."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small file system needs root")
    folder = tmp_path / "small"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", folder], capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {made.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_it_is_refused_with_what_to_do(small_disk: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="recording needs torch")
    (tmp_path / "train.py").write_text(TRAIN)
    target = small_disk / "deep" / "run"
    words = ("profile", "--run-dir", str(target), "--nproc-per-node", "4", "train.py")
    done = run_here(*words, cwd=tmp_path)
    assert done.status == 2
    assert "dptune: error: recording 4 ranks may take " in done.err
    assert "has 13 MB free" in done.err or "has 12 MB free" in done.err
    assert "hint: record fewer ranks (--ranks 0) or steps" in done.err
    assert list(small_disk.iterdir()) == []


@pytest.mark.thorough
def test_what_the_hint_says_helps(small_disk: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="recording needs torch")
    (tmp_path / "train.py").write_text(TRAIN)
    fewer = ("--ranks", "0", "--untraced", "3", "--light", "1", "--detailed", "0", "--no-links")
    words = ("profile", "--run-dir", str(small_disk / "run"), "--nproc-per-node", "2", *fewer, "train.py")
    done = run_here(*words, cwd=tmp_path)
    assert done.status == 0, done.err
    assert (small_disk / "run" / "rank-00000.trace.json.gz").exists()


def test_the_samples_are_within_the_estimate() -> None:
    samples = Path(__file__).parents[2] / "sample_traces"
    sizes = [sum(f.stat().st_size for f in run.glob("rank-00000.*")) for run in samples.iterdir() if run.is_dir()]
    assert sizes
    assert max(sizes) < disk.need_bytes(Schedule(light=4, detailed=1), 1)


def test_nothing_is_needed_where_nothing_is_traced(tmp_path: Path) -> None:
    assert disk.need_bytes(Schedule(light=0, detailed=0), 8) < 1_000_000
    assert disk.free_bytes(tmp_path / "not" / "there") > 0


# Limits itself, or fills the disk, after its third step: the untraced window is open.
RUNS_OUT = """
    import os, resource, signal, sys, torch
    model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(20)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(60):
        if step == 3: {happens}
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    sys.exit(5)
"""
FILLS = """
        if step == 3:
            with open(os.path.join(os.environ["FULL"], "data"), "wb", 0) as sink:
                try:
                    while sink.write(bytes(4096)) == 4096: pass
                except OSError: pass
"""


def said_of(folder: Path) -> list[str]:
    return [finding.text for finding in recording(record_in(folder), facts_in(folder))]


@pytest.mark.records
@pytest.mark.parametrize(
    ("limit", "what"),
    [
        pytest.param(
            9_000,
            "rank-00000.trace.json.gz could not be written: the file-size limit of the process is 9.0 kB",
            marks=pytest.mark.thorough,
        ),
        (2_500, "the file-size limit of the process is 2.5 kB"),  # not even the facts fit
    ],
)
def test_a_file_size_limit_is_reported_as_that(profile: Callable[..., Run], limit: int, what: str) -> None:
    """Also where the script has given SIGXFSZ back its default, which would end it; it goes on to its own end."""
    happens = f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit})), "
    happens += "signal.signal(signal.SIGXFSZ, signal.SIG_DFL)"
    run = profile(RUNS_OUT.format(happens=happens), "--continue", *SHORT)
    assert run.status == 5, run.err
    reason = f"recording stopped: {what} (ulimit -f, RLIMIT_FSIZE)"
    assert run.facts().ended == reason
    assert run.record.ending.note == f"rank 0: {reason}"
    assert said_of(run.folder) == [f"rank 0: {reason}"]
    assert run.files == {"rank-00000.facts.json", "run.json"}


@pytest.mark.records
def test_a_disk_that_fills_in_a_window_is_reported_as_that(small_disk: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="recording needs torch")
    script = RUNS_OUT.replace("        if step == 3: {happens}\n", FILLS.removeprefix("\n"))
    (tmp_path / "train.py").write_text(textwrap.dedent(script))
    options = ("--continue", "--untraced", "4", "--warmup", "2", "--light", "1", "--detailed", "0", "-q")
    words = ("profile", "--run-dir", str(small_disk / "run"), *options, "train.py")
    done = run_here(*words, cwd=tmp_path, env={"FULL": str(small_disk)})
    assert done.status == 5, done.err
    (facts,) = facts_in(small_disk / "run")
    assert facts.ended == f"recording stopped: the disk is full (0.0 MB free in {small_disk / 'run'})"
    assert said_of(small_disk / "run") == [f"rank 0: {facts.ended}"]
    assert "dptune: rank 0: recording stopped: the disk is full" in done.err


def test_what_is_written_over_is_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    json_files.write(path, RunRecord(dptune="1", command=["train.py"] * 40))
    json_files.overwrite(path, RunRecord(dptune="2", ending=Ending("failed", note="x" * 200)))
    assert json_files.read(path, RunRecord).ending.note == "x" * 200
    path.with_name("link").symlink_to(path)
    with pytest.raises(OSError, match="symbolic"):
        json_files.overwrite(path.with_name("link"), RunRecord())

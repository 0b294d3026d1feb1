"""A recording that does not fit is refused before anything is made."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dptune.capture import disk
from dptune.runfile.record import Schedule

from .launching import DPTUNE, TRAIN, run


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
    words = (*DPTUNE, "profile", "--run-dir", str(target), "--nproc-per-node", "4", "train.py")
    done = run(*words, cwd=tmp_path)
    assert done.status == 2
    assert "dptune: error: recording 4 ranks may take " in done.err
    assert "13 MB are free" in done.err or "12 MB are free" in done.err
    assert "hint: record fewer ranks (--ranks 0) or steps" in done.err
    assert list(small_disk.iterdir()) == []


@pytest.mark.thorough
def test_what_the_hint_says_helps(small_disk: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="recording needs torch")
    (tmp_path / "train.py").write_text(TRAIN)
    fewer = ("--ranks", "0", "--unprofiled", "3", "--lean", "1", "--rich", "0")
    words = (*DPTUNE, "profile", "--run-dir", str(small_disk / "run"), "--nproc-per-node", "2", *fewer, "train.py")
    done = run(*words, cwd=tmp_path)
    assert done.status == 0, done.err
    assert (small_disk / "run" / "rank-00000.trace.json.gz").exists()


def test_the_samples_are_within_the_estimate() -> None:
    samples = Path(__file__).parents[2] / "sample_traces"
    sizes = [sum(f.stat().st_size for f in run.glob("rank-00000.*")) for run in samples.iterdir() if run.is_dir()]
    assert sizes
    assert max(sizes) < disk.need_bytes(Schedule(lean=4, rich=1), 1)


def test_nothing_is_needed_where_nothing_is_traced(tmp_path: Path) -> None:
    assert disk.need_bytes(Schedule(lean=0, rich=0), 8) < 1_000_000
    assert disk.free_bytes(tmp_path / "not" / "there") > 0

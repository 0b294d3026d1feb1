"""A script that runs out of memory, in a control group of its own that has little."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from .. import in_process  # noqa: TID252 - tests are no installed package
from .conftest import SHORT
from .launching import TRAIN, facts_in, left_behind, record_in, surroundings

pytestmark = pytest.mark.records
_LIMIT_BYTES = 900_000_000
GROWS = TRAIN.replace("    optimizer.zero_grad()", "    grown = torch.ones(step // 9 * 10**9)")


@pytest.fixture
def little_memory() -> Iterator[Path]:
    """A control group, of version 1 or 2, below the one this test runs in."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("a control group takes root")
    groups = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    root = Path("/sys/fs/cgroup")
    first = "memory" in groups
    above = root / "memory" / groups["memory"].lstrip("/") if first else root / groups.get("", "/").lstrip("/")
    group, limit = above / f"dptune-test-{os.getpid()}", "memory.limit_in_bytes" if first else "memory.max"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"a control group cannot be made here: {error.strerror}")
    try:
        try:
            (group / limit).write_text(str(_LIMIT_BYTES))
        except OSError as error:
            pytest.skip(f"memory cannot be limited here: {error.strerror}")
        yield group
    finally:
        group.rmdir()


def test_it_is_said_for_certain(little_memory: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="recording needs torch")
    (tmp_path / "train.py").write_text(GROWS)

    def enter() -> None:
        (little_memory / "cgroup.procs").write_text(str(os.getpid()))

    words = ("profile", "--run-dir", "run", *SHORT, "--continue", "train.py")
    with open(os.devnull) as none, (tmp_path / "said").open("w") as said:
        streams = (none.fileno(), said.fileno(), said.fileno())
        status = in_process.forked(*words, streams=streams, cwd=tmp_path, env=surroundings(), before=enter).wait(900)
    text = (tmp_path / "said").read_text()
    assert status == 137, text
    assert "the kernel killed one of its processes: out of memory" in text
    folder = tmp_path / "run"
    assert record_in(folder).ending.how == "failed"
    assert facts_in(folder)[0].window("untraced").complete  # type: ignore[union-attr]
    assert left_behind(folder) == []

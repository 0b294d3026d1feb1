"""The example of a coding agent, run as it is: from "my training is slow" to the patched script."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ..prove.test_engine import left_in  # noqa: TID252 - tests are no installed package

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "agent"


@pytest.mark.thorough
@pytest.mark.records
def test_an_agent_makes_a_script_faster_and_leaves_no_process(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="trials need torch")
    pytest.importorskip("mcp.server.mcpserver", reason="the server needs the extra mcp")
    shutil.copy(EXAMPLE / "train.py", tmp_path)
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "client.py"), "train.py"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=3000,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["user", "My", "training", "is", "slow."]
    assert [line.split()[1] for line in lines if line.startswith("agent")][:3] == [
        "tune_start",
        "tune_result",
        "report",
    ]
    assert 'dptune outcome: "faster"' in lines
    assert re.fullmatch(r"agent  Applied: \d+% less time per sample \(interval \d+% to \d+%\)\.", lines[-1])
    assert re.search(r"DataLoader\(Recordings\(\), batch_size=16, num_workers=\d", (tmp_path / "train.py").read_text())
    assert left_in(tmp_path) == []
    compared = (line.partition(":")[0] for line in (EXAMPLE / "transcript.txt").read_text().splitlines())
    assert [line.partition(":")[0] for line in lines[:-1]] == list(compared)[:-1]

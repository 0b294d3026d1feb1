"""The example of a coding agent: its transcript, and a run of it from "my training is slow" to the patched script."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dptune.agents import calls
from dptune.agents.calls import Calls
from dptune.tune.result import Tuning

from ..prove.test_engine import left_in  # noqa: TID252 - tests are no installed package

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "agent"


def test_the_transcript_has_tools_arguments_and_fields_that_exist() -> None:
    lines = [line.split(None, 1) for line in (EXAMPLE / "transcript.txt").read_text().splitlines()]
    started = Calls().tune_start(["train.py"])  # refused: it starts nothing
    fields = {
        "tune_start": {*started},
        "tune_result": {*calls.TUNED} & {*Tuning.model_fields},
        "report": {*calls.REPORT, "next_step"},
    }
    tool, called = "", []
    for who, words in lines:
        if who == "agent" and (call := re.fullmatch(r"(\w+) ({.*})", words)):
            tool, arguments = call[1], json.loads(call[2])
            assert {*arguments} <= {*inspect.signature(getattr(Calls, tool)).parameters}
            called.append(tool)
        elif who == "dptune":
            name, _, value = words.partition(": ")
            assert name in fields[tool]
            json.loads(value)
    assert called == [*fields]
    command = next(json.loads(words.partition(": ")[2]) for who, words in lines if words.startswith("command: "))
    shown = re.sub(r"/\S+/tuned", "tuned", command)
    again = Calls().tune_start(["train.py"], time_limit="30m", only="loader.num_workers")["command"]
    assert shown == re.sub(r"/\S+/tuned", "tuned", again)


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

"""What each call of the command may load: the table is the promise."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"torch", "textual", "rich", "numpy", "pydantic", "msgspec", "pandas", "hta", "libcst"}

# The words of a call -> the heavy packages it may load.
MAY_LOAD = {
    ("--version",): set(),
    ("--help",): set(),
    ("report", "--help"): set(),
    ("check", "--help"): set(),
    ("compare", "--help"): set(),
    ("rules", "--help"): set(),
    ("profile", "--help"): set(),
    ("demo", "--help"): set(),
    ("tune", "--help"): set(),
    ("mcp", "--help"): set(),
    ("skill",): set(),
    ("completion", "bash"): set(),
    ("profile", "--dry-run", "{trace}"): set(),
    ("repotr",): set(),
    ("report", "--frmat", "json"): set(),
    ("rules", "list"): {"pydantic"},
    ("rules", "list", "--format", "json"): {"pydantic"},
    ("report", "{trace}", "--format", "text"): {"pydantic", "numpy", "msgspec"},
    ("report", "{trace}", "--format", "json"): {"pydantic", "numpy", "msgspec"},
    ("check", "{trace}"): {"pydantic", "numpy", "msgspec"},
    ("compare", "{trace}", "{trace}"): {"pydantic", "numpy", "msgspec"},
}
_PROGRAM = """
import json, sys
from dptune.cli import main
status = main(sys.argv[1:])
print(json.dumps([status, sorted({name.partition(".")[0] for name in sys.modules})]), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "args": {"device": 0, "stream": 7}}
    events = [{**kernel, "ts": 100 * number, "dur": 50} for number in range(4)]
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}), encoding="utf-8")
    return path


@pytest.mark.parametrize("words", MAY_LOAD, ids=" ".join)
def test_a_call_loads_no_more_than_it_needs(words: tuple[str, ...], trace: Path) -> None:
    call = [word.format(trace=trace) for word in words]
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *call], capture_output=True, text=True, check=True, cwd=trace.parent
    )
    _, loaded = json.loads(done.stderr.splitlines()[-1])
    assert "dptune" in loaded
    assert HEAVY & set(loaded) <= MAY_LOAD[words]

"""What each call of the command may load: the table is the promise."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
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
# Calls one after another, those first that may load the least: what is loaded after each, by the first that loads it.
_PROGRAM = """
import json, sys
from dptune.cli import main
for words in json.loads(sys.argv[1]):
    main(words)
    print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "args": {"device": 0, "stream": 7}}
    events = [{**kernel, "ts": 100 * number, "dur": 50} for number in range(4)]
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}), encoding="utf-8")
    return path


def test_calls_load_no_more_than_they_need(trace: Path) -> None:
    calls = sorted(MAY_LOAD.items(), key=lambda call: len(call[1]))
    assert all(less <= more for (_, less), (_, more) in pairwise(calls))  # else each set needs a process of its own
    asked = json.dumps([[word.format(trace=trace) for word in words] for words, _ in calls])
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, asked], capture_output=True, text=True, check=True, cwd=trace.parent
    )
    after_each = [set(json.loads(line)) for line in done.stderr.splitlines() if line.startswith("[")]
    assert len(after_each) == len(calls)
    for (words, promise), loaded in zip(calls, after_each, strict=True):
        assert "dptune" in loaded
        assert HEAVY & loaded <= promise, " ".join(words)

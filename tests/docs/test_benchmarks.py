"""The documentation quotes benchmarks as they compute them from their raw results."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_what_recording_costs_is_quoted_from_the_results() -> None:
    script = ROOT / "tests" / "benchmarks" / "overhead.py"
    done = subprocess.run([sys.executable, str(script), "--table"], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip() in (ROOT / "docs" / "recording.md").read_text(encoding="utf-8")

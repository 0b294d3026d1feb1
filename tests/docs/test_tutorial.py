"""The tutorial's script has the problem that the tutorial says, at the line that it says."""

from __future__ import annotations

import difflib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
SCRIPT = (DOCS / "examples" / "train.py").read_text(encoding="utf-8")
PAGE = (DOCS / "tutorial.md").read_text(encoding="utf-8")
DPTUNE = (sys.executable, "-m", "dptune")


def test_the_diff_of_the_tutorial_is_of_its_script() -> None:
    (diff,) = re.findall(r"^```diff\n(.*?)^```", PAGE, re.M | re.S)
    imports, _, body = diff.partition(" ...\n")
    assert imports == "+import contextlib\n import os\n"
    before, after = ([row[1:] for row in body.splitlines() if row[0] == sign] for sign in "-+")
    assert "\n".join(before[:2]) in SCRIPT
    assert before[2] in SCRIPT
    mended = SCRIPT.replace("\n".join(before), "\n".join(after)).replace(
        "import os\n", "import contextlib\nimport os\n"
    )
    compile(mended, "train.py", "exec")
    changed = [row for row in difflib.ndiff(SCRIPT.splitlines(), mended.splitlines()) if row[0] == "+"]
    assert len(changed) == len(after) + 1


@pytest.mark.records
def test_its_script_has_the_problem_that_it_says(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="recording needs torch")
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    windows = ("--warmup", "2", "--unprofiled", "5", "--lean", "5", "--rich", "0", "--run-dir", "run")
    words = [*DPTUNE, "profile", "-q", *windows, "--nproc-per-node", "2", "train.py"]
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    done = subprocess.run(
        [*DPTUNE, "report", "run", "--format", "json"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    (own,) = [one for one in json.loads(done.stdout)["advice"] if one["rule"] == "DP102"]
    (change,) = own["changes"]
    assert (change["at"]["file"], change["at"]["line"]) == ("train.py", 26)
    assert "In train.py:26" in PAGE

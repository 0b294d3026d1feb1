"""The tutorial's script has the problem that the tutorial says, at the line that it says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dptune.advice import Change, Location
from dptune.patch.diff import patches

from .. import in_process  # noqa: TID252 - tests are no installed package
from ..quiet import as_if_alone  # noqa: TID252 - tests are no installed package

DOCS = Path(__file__).parents[2] / "docs"
SCRIPT = (DOCS / "examples" / "train.py").read_text(encoding="utf-8")
PAGE = (DOCS / "tutorial.md").read_text(encoding="utf-8")
DPTUNE = (sys.executable, "-m", "dptune")


def test_the_diff_of_the_tutorial_is_what_is_printed(tmp_path: Path) -> None:
    (diff,) = re.findall(r"^```diff\n(.*?)^```", PAGE, re.M | re.S)
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    change = Change(knob="ddp.no_sync", now=False, then=True, at=Location(file="train.py", line=26))
    assert patches([change], tmp_path).diff == diff


@pytest.mark.records
def test_its_script_has_the_problem_that_it_says(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="recording needs torch")
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    windows = ("--warmup", "1", "--untraced", "3", "--light", "3", "--detailed", "0", "--no-links", "--run-dir", "run")
    words = [*DPTUNE, "profile", "-q", *windows, "--nproc-per-node", "2", "train.py"]
    env = {**os.environ, "PYTHONPATH": str(DOCS.parent / "tests" / "without_compiler")}
    subprocess.run(words, cwd=tmp_path, env=env, check=True, capture_output=True)
    as_if_alone(tmp_path / "run")
    done = in_process.dptune("report", "run", "--format", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (own,) = [one for one in json.loads(done.stdout)["advice"] if one["rule"] == "DP102"]
    (change,) = own["changes"]
    assert (change["at"]["file"], change["at"]["line"]) == ("train.py", 26)
    assert f"\n 1  {own['rule']} {own['slug']}  train.py:26  " in PAGE
    assert (own["confidence"], own["numerics"]) == ("high", "same")

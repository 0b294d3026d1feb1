"""The tutorial's script has the problem that the tutorial says, at the line that it says."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from dptune.advice import Change, Location
from dptune.advise import packs
from dptune.advise.rule_calls import Questioner
from dptune.config import Settings
from dptune.measure import measure
from dptune.patch.diff import patches
from dptune.trace import load

from .. import in_process  # noqa: TID252 - tests are no installed package

DOCS = Path(__file__).parents[2] / "docs"
SCRIPT = (DOCS / "examples" / "train.py").read_text(encoding="utf-8")
PAGE = (DOCS / "tutorial.md").read_text(encoding="utf-8")


def test_the_diff_of_the_tutorial_is_what_is_printed(tmp_path: Path) -> None:
    (diff,) = re.findall(r"^```diff\n(.*?)^```", PAGE, re.M | re.S)
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    change = Change(knob="ddp.no_sync", now=False, then=True, at=Location(file="train.py", line=26))
    assert patches([change], tmp_path).diff == diff


@pytest.mark.records
@pytest.mark.parametrize("width", ["64", pytest.param("1024", marks=pytest.mark.thorough)])
def test_its_script_has_the_problem_that_it_says(tmp_path: Path, width: str) -> None:
    """With its layers as wide as it has them, or narrow ones, which are computed in a tenth of the time."""
    pytest.importorskip("torch", reason="recording needs torch")
    assert SCRIPT.count("1024") == 4
    (tmp_path / "train.py").write_text(SCRIPT.replace("1024", width), encoding="utf-8")
    windows = ("--warmup", "1", "--untraced", "3", "--light", "3", "--detailed", "0", "--no-links", "--run-dir", "run")
    words = ("profile", "-q", *windows, "--nproc-per-node", "2", "train.py")
    env = {**os.environ, "PYTHONPATH": str(DOCS.parent / "tests" / "without_compiler")}
    done = in_process.recording(*words, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    run = load([tmp_path / "run"], cached=False)
    (loaded,) = [one for one in packs.load_packs() if one.rule.code == "DP102"]
    limits = Settings(rules={"DP102": {"worth_share": 0.0}})  # what it takes of a step is up to the machine
    (advice,) = Questioner(measure(run), list(run.facts.values()), limits).ask(loaded).said
    (change,) = advice.changes
    assert change.at == Location(file="train.py", line=26)
    assert f"\n 1  {advice.rule} {advice.slug}  train.py:26  " in PAGE
    assert (advice.confidence, advice.numerics) == ("high", "same")

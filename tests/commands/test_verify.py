from __future__ import annotations

import json
import os
import shutil
from argparse import Namespace
from pathlib import Path

import pytest

from dptune import demo
from dptune.cli import main
from dptune.commands.shared import reading as commands_reading
from dptune.commands.verify import _change, _made_since
from dptune.patch.diff import patched

from .. import reading  # noqa: TID252 - tests are no installed package

DEMO = Path(demo.__file__).parent / "train.py"
SAMPLE = Path(__file__).parents[2] / "sample_traces" / "accumulation_without_no_sync"


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sample, where a proof may be written beside it; the report on it is that on the sample itself."""
    run = shutil.copytree(SAMPLE, tmp_path / "run")
    monkeypatch.setattr(commands_reading, "report_of", lambda paths: {str(run): reading.reported(SAMPLE)}[paths[0]])
    return run


def test_advice_is_kept_by_its_code_however_it_is_named(recorded: Path) -> None:
    """Later reports find what was proven by the code."""
    settings, code, promised, saves, changes = _change(Namespace(settings=[], advice="No-Sync-Missing"), recorded)
    assert (settings, code) == ({"ddp.no_sync": True}, "DP102")
    assert promised.startswith("13.9 to 27.2 ms of each 72.1 ms step")
    assert saves is not None
    assert [str(change.at) for change in changes] == ["train.py:76"]
    assert (round(saves.low_share, 3), round(saves.high_share, 3)) == (0.192, 0.377)
    with_more = _change(Namespace(settings=["loader.num_workers=1"], advice="No-Sync-Missing"), recorded)
    # that was not promised
    assert with_more == ({"ddp.no_sync": True, "loader.num_workers": 1}, "DP102", "", None, changes)
    instead = _change(Namespace(settings=["ddp.no_sync=false"], advice="No-Sync-Missing"), recorded)
    assert instead[4] == []  # no patch makes what is set instead


@pytest.mark.parametrize(
    ("name", "message"),
    [("no-snyc-missing", "hint: did you mean 'no-sync-missing'?"), ("DP101", "the report has no recommendation DP101")],
)
def test_advice_that_is_not_there(name: str, message: str, recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(recorded), "--advice", name]) == 2
    assert message in capsys.readouterr().err


@pytest.fixture
def with_script(recorded: Path) -> Path:
    """The sample, recorded in the folder above it, which holds its script."""
    script = recorded.parent / "train.py"
    script.write_bytes(DEMO.read_bytes())
    record = json.loads((recorded / "run.json").read_text())
    (recorded / "run.json").write_text(json.dumps({**record, "working_directory": str(recorded.parent)}))
    os.utime(script, (0, 0))  # written before the run was recorded
    return script


def test_a_script_that_has_the_patch_already_is_not_run(
    with_script: Path, recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = _change(Namespace(settings=[], advice="DP102"), recorded)[4]
    verified = sorted((recorded / "verified").iterdir())
    assert not _made_since(changes, recorded, recorded.parent)
    files, _ = patched(changes, recorded.parent)
    with_script.write_bytes(files["train.py"])
    assert main(["verify", str(recorded), "--advice", "DP102", "--yes"]) == 2
    said = capsys.readouterr().err
    assert "the script has the change of DP102 already, made after the run was recorded: nothing was run" in said
    assert sorted((recorded / "verified").iterdir()) == verified
    os.utime(with_script, (0, 0))  # it was so when the run was recorded: the trials show whether it has an effect
    assert not _made_since(changes, recorded, recorded.parent)

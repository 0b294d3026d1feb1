"""`dptune report --patch` and `dptune verify` of changes that only a patch makes, on a recording of fully_shard."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from dptune.cli import main

RUN = Path(__file__).parents[1] / "rules" / "recorded" / "runs" / "sharded-parameters"
SCRIPT = "from torch.distributed.fsdp import fully_shard\n\nmodel = Model()\nfully_shard(model)\ntrain(model)\n"


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """The recording, made in the folder above it, with a script of one unit that it names."""
    folder = shutil.copytree(RUN, tmp_path / "run")
    for path in folder.glob("*.facts.json"):
        facts = json.loads(path.read_text())
        facts["fsdp"] = [{**fsdp, "where": "train.py:4", "root": True} for fsdp in facts["fsdp"]][-1:]
        path.write_text(json.dumps(facts))
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**record, "working_directory": str(tmp_path)}))
    (tmp_path / "train.py").write_text(SCRIPT)
    return folder


def test_the_change_of_a_setting_is_printed(recorded: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["report", str(recorded), "--patch", "--set", "fsdp.offload_policy=true"]) == 0
    lines = capsysbinary.readouterr().out.decode().splitlines()
    assert [line for line in lines if line[0] in "+-"][2:] == [
        "-from torch.distributed.fsdp import fully_shard",
        "+from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard",
        "-fully_shard(model)",
        "+fully_shard(model, offload_policy=CPUOffloadPolicy())",
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["report", "--patch", "--set", "wrapper=ddp"],
            "line 5 passes the model to `train`, which is not in this file",
        ),
        (["report", "--patch", "--set", "loader.num_workers=2"], "--patch --set cannot set loader.num_workers"),
        (["report", "--patch", "--set", "wrapper=ddp", "--advice", "DP204"], "--set and --advice exclude each other"),
        (["report", "--set", "wrapper=ddp"], "--set requires --patch"),
        (
            ["verify", "--yes", "--set", "wrapper=ddp"],
            "wrapper is set by a patch alone, and there is none in train.py:4",
        ),
        (["verify", "--yes", "--here", "--set", "wrapper=ddp"], "--here runs the script unpatched"),
        (["verify", "--yes", "--set", "fsdp.within_hosts=true"], "not spread evenly over several hosts"),
    ],
)
def test_what_has_no_patch_is_said(
    words: list[str], said: str, recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([words[0], str(recorded), *words[1:]]) in (1, 2)
    assert said in capsys.readouterr().err

"""`--set` and `--apply`: what they take, and what is said of all else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dptune.commands.shared import setting
from dptune.errors import UsageError
from dptune.knobs import KNOBS, Value, knob, written

from .. import in_process  # noqa: TID252 - tests are no installed package

# What it would record, without starting it.
DRY = ("profile", "--dry-run", "--python", sys.executable)


def advice(*changes: Any, rule: str = "DP102") -> list[dict[str, Any]]:
    return [{"rule": rule, "changes": [*changes]}]


def change(name: Any, then: Any) -> dict[str, Any]:
    return {"knob": name, "now": None, "then": then}


def dptune(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    (cwd / "train.py").write_text("")
    return in_process.dptune(*words, "train.py", cwd=cwd)


def refused(done: subprocess.CompletedProcess[str], said: str) -> None:
    """One sentence and a hint, and no word of an internal error."""
    assert done.returncode == 2
    error, hint = done.stderr.splitlines()
    assert error.startswith(f"dptune: error: {said}"), error
    assert len(error) < 400
    assert hint.startswith("hint: ")


def test_what_a_report_proposes_is_read_as_on_the_command_line(tmp_path: Path) -> None:
    changes = (
        change("ddp.bucket_cap_mb", 1),
        change("loader.num_workers", 2),
        change("ddp.comm_hook", "fp16"),
        change("loader.pin_memory", True),
        change("env.OMP_NUM_THREADS", 4),
        {"knob": "cudnn.benchmark", "now": None},
    )
    file = tmp_path / "report.json"
    file.write_text(json.dumps({"advice": advice(*changes)}))
    found = setting.advised(file)
    assert found == {
        "ddp.bucket_cap_mb": 1.0,
        "loader.num_workers": 2,
        "ddp.comm_hook": "fp16",
        "loader.pin_memory": True,
        "env.OMP_NUM_THREADS": "4",
    }
    words = [f"{name}={str(value).lower()}" for name, value in found.items()]
    assert setting.parsed(words) == found


@pytest.mark.parametrize(
    ("proposed", "said"),
    [
        (change("ddp.bucket_cap_mb", "abc"), "DP102 of FILE cannot be applied: ddp.bucket_cap_mb cannot be 'abc'"),
        (
            change("ddp.bucket_cap_mb", {"a": [1]}),
            "DP102 of FILE proposes something that is not a setting: ddp.bucket_cap_mb={...}",
        ),
        (change("ddp.bucket_cap_mb", float("nan")), "DP102 of FILE cannot be applied: ddp.bucket_cap_mb cannot be"),
        (change("ddp.bucket_cap_mb", 1e999), "DP102 of FILE cannot be applied: ddp.bucket_cap_mb cannot be 'inf'"),
        (change("loader.num_workers", -5), "DP102 of FILE cannot be applied: loader.num_workers cannot be '-5'"),
        (change("loader.num_workers", True), "DP102 of FILE cannot be applied: loader.num_workers cannot be 'true'"),
        (change("ddp.comm_hook", "evil"), "DP102 of FILE cannot be applied: ddp.comm_hook cannot be 'evil'"),
        (change("ddp.bucket_cap", 1), "DP102 of FILE cannot be applied: unknown knob 'ddp.bucket_cap'"),
        (change(["x"], 1), "DP102 of FILE proposes something that is not a setting: [...]=1"),
        (change("env.A", "a\0b"), r"DP102 of FILE cannot be applied: env.A cannot be 'a\x00b'"),
        (change("env.A", "a\ud800b"), r"DP102 of FILE cannot be applied: env.A cannot be 'a\ud800b'"),
        (change("env.A\0", "a"), r"DP102 of FILE cannot be applied: unknown knob 'env.A\x00'"),
        (change("env.A=B", "a"), "DP102 of FILE cannot be applied: unknown knob 'env.A=B'"),
        (["knob", "then"], "FILE is not a JSON report: it has no list `advice`"),
        ("knob then", "FILE is not a JSON report: it has no list `advice`"),
    ],
)
def test_a_change_that_cannot_be_is_named_with_its_rule(tmp_path: Path, proposed: Any, said: str) -> None:
    file = tmp_path / "report.json"
    file.write_text(json.dumps(advice(proposed)))
    refused(dptune(*DRY, "--apply", "report.json", cwd=tmp_path), said.replace("FILE", "report.json"))


def test_two_that_contradict_each_other_are_named(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    two = advice(change("loader.num_workers", 2)) + advice(change("loader.num_workers", 4), rule="DP301")
    file.write_text(json.dumps(two))
    with pytest.raises(UsageError, match=r"DP102 and DP301 of .* propose two values for loader.num_workers"):
        setting.advised(file)
    same = advice(change("ddp.bucket_cap_mb", 2)) + advice(change("ddp.bucket_cap_mb", 2.0), rule="DP301")
    file.write_text(json.dumps(same))
    assert setting.advised(file) == {"ddp.bucket_cap_mb": 2.0}


@pytest.mark.parametrize("text", ["", "null", "3", "NaN", '"x"', '{"advice": 3}', "[[]]", '[{"rule": 1}]', "{", "\xff"])
def test_what_is_no_report_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=r"x\.json is not a JSON report") as caught:
        setting.advised(tmp_path / "x.json")
    assert caught.value.hint.startswith("write one with: dptune report")


def test_what_is_no_file_of_some_length_is_refused(tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text("[" * 200_000)
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(2**30)
    cases = {
        "deep.json": "deep.json is not a JSON report: it is nested too deeply",
        "pipe": "cannot read pipe: it is not a file",
        ".": "cannot read .: it is a folder",
        "/dev/zero": "cannot read /dev/zero: it is not a file",
        "large.json": "large.json is not a JSON report: it holds more than 64 MiB",
        "gone.json": "cannot read gone.json: No such file or directory",
        "a" * 300: "cannot read aaa",
    }
    for name, said in cases.items():
        refused(dptune(*DRY, "--apply", name, cwd=tmp_path), said)


def test_a_pipe_that_the_shell_opened_is_read(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json.dumps(advice(change("loader.num_workers", -5))))
    line = f"{sys.executable} -m dptune {' '.join(DRY)} --apply <(sleep 0.3; cat report.json) train.py"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    assert "DP102 of /dev/fd/" in done.stderr
    assert "loader.num_workers cannot be '-5'" in done.stderr
    assert "a whole number of processes, at least 0: " in done.stderr


def test_a_value_that_no_environment_can_hold_is_refused() -> None:
    with pytest.raises(UsageError, match=r"env\.A cannot be"):
        setting.parsed(["env.A=a\0b"])
    assert setting.parsed(["env.A=b=c"]) == {"env.A": "b=c"}
    assert setting.parsed(["env.A=\udcff"]) == {"env.A": "\udcff"}  # a byte of the command line that is no character


@pytest.mark.parametrize(
    ("value", "text"), [(8.0, "8"), (0.5, "0.5"), ("8.0", "8.0"), ("v1.0", "v1.0"), (True, "true"), (None, "default")]
)
def test_a_value_is_written_as_it_is_read(value: Value, text: str) -> None:
    """Text keeps what it ends in: a variable of `8.0` is none of `8`."""
    assert written(value) == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ddp.bucket_cap_mb", "1e308"),
        ("ddp.bucket_cap_mb_list", f"1,{'9' * 400}"),
        ("loader.batch_size", f"1{'0' * 26}"),
    ],
)
def test_what_torch_could_not_count_with_is_refused(name: str, text: str) -> None:
    with pytest.raises(UsageError, match=f"{name} cannot be '.{{1,40}}'") as told:
        KNOBS[name].parse(text)
    assert told.value.hint == "it is more than 1,000,000,000"


@pytest.mark.parametrize(
    ("name", "text", "takes"),
    [
        ("optimizer.betas", "2,2", "numbers with commas between, at least 0, less than 1"),
        ("optimizer.betas", "0.9,1", "numbers with commas between, at least 0, less than 1"),
        ("optimizer.eps", "1_0", "a number, at least 0"),
        ("loader.num_workers", "1_0", "a whole number of processes, at least 0"),
    ],
)
def test_what_a_knob_does_not_take(name: str, text: str, takes: str) -> None:
    with pytest.raises(UsageError, match=f"{name} cannot be '{text}'") as told:
        KNOBS[name].parse(text)
    assert takes in (told.value.hint or "")
    assert KNOBS["optimizer.betas"].parse("0,0.999") == "0,0.999"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ddp.buckt_cap_mb", "did you mean 'ddp.bucket_cap_mb'?"),
        ("lr", "did you mean 'optimizer.lr'?"),
        ("workers", "did you mean 'loader.num_workers'?"),
        ("bucket_size", "`dptune rules knobs` lists the knobs (ddp.*, fsdp.*, loader.*, "),  # and not loader.batch_size
    ],
)
def test_a_name_that_is_none_gets_the_nearest(name: str, meant: str) -> None:
    with pytest.raises(UsageError) as told:
        knob(name)
    assert told.value.hint is not None
    assert told.value.hint.startswith(meant)


def test_what_only_a_patch_sets_is_not_set_from_outside(tmp_path: Path) -> None:
    said = "wrapper cannot be set from outside: only a patch of the script sets it"
    refused(dptune("profile", "--dry-run", "--set", "wrapper=ddp", cwd=tmp_path), said)
    file = tmp_path / "report.json"
    file.write_text(json.dumps(advice(change("wrapper", "ddp"), change("loader.num_workers", 2))))
    assert setting.advised(file) == {"loader.num_workers": 2}
    file.write_text(json.dumps(advice(change("wrapper", "ddp"))))
    with pytest.raises(UsageError, match=r"report\.json proposes no change"):
        setting.advised(file)

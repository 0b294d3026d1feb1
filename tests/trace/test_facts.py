"""Facts that are wrong, doubled or absent: each is a finding, none a crash, and no run with one is sound."""

import json
import os

import pytest

from dptune.errors import RunError, TraceError
from dptune.measure import measure
from dptune.runfile import form
from dptune.runfile.record import RunRecord
from dptune.trace import load

EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
WINDOW = {"name": "unprofiled", "first_step": 1, "durations_ns": [5, 5], "loader_wait_ns": [1, 1]}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "rank-00000.trace.json.gz").write_text(json.dumps({"schemaVersion": 1, "traceEvents": [EVENT]}))
    form.write(tmp_path / "run.json", RunRecord())
    write(tmp_path)
    return tmp_path


def write(folder, name="rank-00000", **changed):
    facts = {"rank": 0, "world_size": 1, "windows": [WINDOW], **changed}
    (folder / f"{name}.facts.json").write_text(json.dumps(facts))


def findings(folder):
    run = load([folder])
    measure(run)
    assert {finding.level for finding in run.findings} <= {"partial"}
    return {finding.code: finding.text for finding in run.findings}


def test_possible_facts_are_no_finding(folder):
    assert findings(folder) == {}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"durations_ns": [5, 0]}, "a step took 0 ns"),
        ({"durations_ns": [5, -7]}, "a step took -7 ns"),
        ({"durations_ns": [5, 10**300]}, "a step took too large"),
        ({"device_durations_ns": [0, 0]}, "a step on the device took 0 ns"),
        ({"loader_wait_ns": [1, 6]}, "a step of 5 ns waited 6 ns"),
        ({"loader_wait_ns": [1, -1]}, "loader_wait_ns holds -1"),
        ({"backwards": [1]}, "backwards holds 1 steps and durations_ns 2"),
        ({"backwards": [1, 1], "unsynced_backwards": [1, 2]}, "2 of 1 backward calls"),
        ({"first_step": -1}, "begins with step -1"),
        ({"taken_share": 1.5}, "1.5 of the time of its cores were taken away"),
        ({"taken_share": -0.1}, "-0.1 of the time of its cores were taken away"),
    ],
)
def test_an_impossible_window_is_left_out(folder, changed, why):
    write(folder, windows=[{**WINDOW, **changed}, {**WINDOW, "name": "lean"}])
    found = findings(folder)
    assert found["window-impossible"].startswith("rank 0: its window `unprofiled` is left out: ")
    assert why in found["window-impossible"]
    assert [window.name for window in load([folder]).facts[0].windows] == ["lean"]


@pytest.mark.parametrize(
    "changed",
    [
        {"rank": -1},
        {"rank": 3},
        {"world_size": 0},
        {"world_size": 10**7},
        {"environment": {"NCCL_DEBUG": 5}},
        {"environment": {"NCCL_DEBUG": ["x"]}},
        {"settings": {"a": {}}},
    ],
)
def test_facts_of_no_run_are_unreadable(folder, changed):
    write(folder, **changed)
    assert set(findings(folder)) == {"file-unreadable", "facts-missing"}


def test_deep_nesting_is_unreadable(folder):
    (folder / "rank-00000.facts.json").write_text("[" * 200_000)
    assert "nested too deeply" in findings(folder)["file-unreadable"]


def test_two_facts_files_of_one_rank(folder):
    write(folder, "rank-0")
    assert "two facts files claim rank 0" in findings(folder)["facts-duplicate"]


def test_no_facts_beside_a_record(folder):
    (folder / "rank-00000.facts.json").unlink()
    assert findings(folder) == {"facts-missing": "rank 0 has a trace but no facts"}


def test_facts_without_windows(folder):
    write(folder, windows=[])
    assert set(findings(folder)) == {"windows-missing"}


@pytest.mark.parametrize("name", ["run.json", "rank-00000.facts.json", "rank-00000.trace.json.gz"])
@pytest.mark.parametrize("device", [True, False])
def test_pipes_and_devices_are_not_opened(folder, name, device):
    (folder / name).unlink()
    if device:
        (folder / name).symlink_to("/dev/zero")
    else:
        os.mkfifo(folder / name)
    assert "is not a regular file" in findings(folder)["file-unreadable"]


def test_a_pipe_given_as_trace_or_latest(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(TraceError, match="not a regular file"):
        load([tmp_path / "pipe.json"])
    os.mkfifo(tmp_path / "latest")
    with pytest.raises(RunError, match="not a regular file"):
        load([tmp_path])


def test_traces_that_lost_record_and_facts_are_traces(folder):
    (folder / "run.json").unlink()
    (folder / "rank-00000.facts.json").unlink()
    (folder / "rank-00000.detail.trace.json.gz").write_text("x")
    run = load([folder])
    assert ([rank.rank for rank in run.ranks], run.findings) == ([0], [])


def test_latest_names_only_a_folder_beside_it(folder):
    runs = folder / "runs"
    (runs / "own").mkdir(parents=True)
    for name in (str(folder), "..", "own/..", "../", "."):
        (runs / "latest").write_text(name)
        with pytest.raises(RunError, match="holds no trace files"):
            load([runs])

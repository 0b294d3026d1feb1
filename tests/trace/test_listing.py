"""What lies beside traces: run.json of other tools, links, folders that cannot be read, other recordings."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from dptune.errors import RunError, TraceError
from dptune.runfile import json_files, recognition
from dptune.runfile.record import Ending, RunRecord
from dptune.trace import load
from dptune.trace.places.files import find

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "healthy"
EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1, "dur": 1}


def write(path, rank=0, world=2):
    path.parent.mkdir(exist_ok=True, parents=True)
    info = {"rank": rank, "world_size": world}
    path.write_text(json.dumps({"schemaVersion": 1, "distributedInfo": info, "traceEvents": [EVENT]}))
    return path


@pytest.fixture
def folder(tmp_path):
    """A folder of two ranks' traces."""
    for rank in (0, 1):
        write(tmp_path / "run" / f"rank{rank}.json", rank)
    return tmp_path / "run"


def found(*paths):
    run = load(paths)
    return {rank.rank for rank in run.ranks}, [(one.code, one.level, one.text) for one in run.findings]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ('{"lr": 0.1, "name": "my run"}', "was not written by dptune"),
        ("[1]", "was not written by dptune"),
        ("", "is empty"),
        ("run 7", "is not readable JSON"),
    ],
)
@pytest.mark.parametrize("below", [False, True])
def test_the_run_json_of_another_tool_hides_no_trace(folder, content, why, below):
    place = folder / "wandb" if below else folder
    place.mkdir(exist_ok=True)
    (place / "run.json").write_text(content)
    note = ("run-json-foreign", "info", f"{place.name}/run.json {why}: it is ignored")
    assert found(folder) == ({0, 1}, [note])
    assert found(folder / "rank0.json", folder / "rank1.json") == ({0, 1}, [])


def test_the_run_json_of_another_tool_in_a_glob_and_alone(folder):
    (folder / "run.json").write_text('{"lr": 0.1}')
    ranks, findings = found(*folder.iterdir())
    assert (ranks, [code for code, _, _ in findings]) == ({0, 1}, ["file-not-a-trace"])
    with pytest.raises(TraceError, match="JSON without trace events"):
        load([folder / "run.json"])


def test_a_trace_that_is_called_run_json_is_read(tmp_path):
    write(tmp_path / "run.json", world=1)
    assert found(tmp_path) == found(tmp_path / "run.json") == ({0}, [])


@pytest.mark.parametrize(
    ("content", "code", "why"),
    [
        ('{"schema_version": 99, "schema": "dptune.run/99"}', "schema-newer",
         "run: run.json has schema version '99', but this version reads 0.x: update dptune"),
        (json_files.text(RunRecord(dptune="0.1"))[:40], "file-unreadable", "run: run.json is not JSON: "),
        (json_files.text(RunRecord(dptune="0.1")), "file-unreadable",
         "run/run.json belongs to a recording whose traces and facts are missing"),
    ],
)  # fmt: skip
def test_traces_beside_a_run_json_of_dptune_are_read_without_it(folder, content, code, why):
    (folder / "run.json").write_text(content)
    for named in (folder, folder / "run.json"):
        ranks, [(its_code, level, text)] = found(named)
        assert (ranks, its_code, level) == ({0, 1}, code, "partial")
        assert text.startswith(why)
        assert text.endswith("; the other traces in the folder are read without it")


def test_traces_beside_a_run_json_that_cannot_be_read(folder, monkeypatch):
    def record_of(_folder):
        raise PermissionError(errno.EACCES, "Permission denied")

    (folder / "run.json").write_text(json_files.text(RunRecord(dptune="0.1")))
    monkeypatch.setattr(recognition, "record_of", record_of)
    ranks, [(code, level, text)] = found(folder)
    assert (ranks, code, level) == ({0, 1}, "file-unreadable", "partial")
    assert text.startswith("run/run.json cannot be read: Permission denied; ")


def test_no_names_at_all():
    with pytest.raises(RunError, match="no trace files were named"):
        find([])


def test_a_recording_that_failed_is_one_whatever_lies_beside_it(tmp_path):
    json_files.write(tmp_path / "run.json", RunRecord(dptune="0.1", ending=Ending("failed", 1)))
    (tmp_path / "report.json").write_text('{"a": 1}')
    with pytest.raises(
        RunError, match=r"holds neither traces nor facts: the script ended \(failed\) with exit status 1"
    ):
        load([tmp_path])


def test_a_recording_with_the_run_json_of_another_tool_says_so(tmp_path):
    shutil.copytree(SAMPLE, tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text('{"lr": 0.1}')
    run = load([tmp_path / "run"])
    assert (run.record, sorted(run.facts), len(run.ranks)) == (None, [0, 1], 2)
    assert [one.text for one in run.findings] == [
        "run: run.json was not written by dptune; restore the original file, or record again"
    ]


def test_recordings_beside_traces_are_named(folder):
    shutil.copytree(SAMPLE, folder / "recorded")
    note = "left out run/recorded: recordings of dptune are reported separately, one at a time"
    assert found(folder) == ({0, 1}, [("runs-left-out", "info", note)])
    for path in folder.glob("*.json"):
        path.unlink()
    read = load([folder])
    assert read.sources == [str(folder / "recorded")]
    only = "read run/recorded: it is the only run in the folder"
    assert [(one.code, one.text) for one in read.findings] == [("run-in-folder", only)]


@pytest.mark.parametrize(
    ("target", "what"), [("/gone/rank1.json", "does not exist"), ("rank1.json", "links back to it")]
)
def test_a_link_that_leads_nowhere_is_a_rank_that_is_missing(folder, target, what):
    link = folder / "rank1.json"
    link.unlink()
    link.symlink_to(target)
    text = f"{link} is a link to {target}, which {what}"
    ranks, findings = found(folder)
    assert ranks == {0}
    assert ("file-unreadable", "partial", text) in findings
    with pytest.raises(TraceError) as error:
        load([link])
    assert error.value.message == text


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes of POSIX")
def test_a_pipe_beside_traces_is_named(folder):
    (folder / "rank1.json").unlink()
    os.mkfifo(folder / "rank1.json")
    assert ("file-unreadable", "partial", f"{folder / 'rank1.json'} is not a regular file") in found(folder)[1]


def test_links_to_folders_are_named_and_loops_are_not(folder, tmp_path):
    write(tmp_path / "elsewhere" / "rank2.json", 2)
    (folder / "deep").mkdir()
    (folder / "deep" / "up").symlink_to("..")
    (folder / "node1").symlink_to(tmp_path / "elsewhere")
    note = ("link-left-out", "info", "left out run/node1: links to folders are not followed")
    assert found(folder) == ({0, 1}, [note])
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "node1").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="holds no trace files") as error:
        load([tmp_path / "links"])
    assert error.value.hint.endswith("links/node1) are not followed: pass the folders themselves")


@pytest.fixture
def denied(monkeypatch):
    """Have folders refuse to be listed: the tests may run as root, whom no permission stops."""
    real, closed = os.scandir, set()

    def scandir(path="."):
        if Path(path) in closed:
            raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    return closed


def test_a_folder_that_may_not_be_listed_is_named(folder, denied):
    write(folder / "closed" / "rank2.json", 2)
    denied.add(folder / "closed")
    text = f"cannot read {folder / 'closed'}: Permission denied"
    assert found(folder) == ({0, 1}, [("file-unreadable", "partial", text)])
    denied.add(folder)
    with pytest.raises(RunError) as error:
        load([folder])
    assert error.value.message == f"cannot read {folder}: Permission denied"
    assert error.value.hint == "check the path and its permissions"


def test_a_path_that_may_not_be_looked_at_is_named(folder, monkeypatch):
    def stat(path, **_):
        raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))

    monkeypatch.setattr(Path, "stat", stat)
    with pytest.raises(RunError) as error:
        load([folder / "rank0.json"])
    assert error.value.message == f"cannot read {folder / 'rank0.json'}: Permission denied"


@pytest.mark.parametrize("name", ["t.zip", "rank0.json.zst", "rank0.json.xz"])
def test_a_folder_of_packed_files_is_to_be_unpacked(tmp_path, name):
    (tmp_path / name).write_bytes(b"PK\x03\x04")
    with pytest.raises(RunError, match="holds no trace files") as error:
        load([tmp_path])
    assert error.value.hint == f"unpack {name} first: traces end in .json or .json.gz"


def test_paths_of_nobody_and_of_standard_input(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match=r"^~nobody-of-that-name/x does not exist$"):
        load(["~nobody-of-that-name/x"])
    with pytest.raises(RunError, match=r"^cannot read standard input \(-\)$"):
        load(["-"])

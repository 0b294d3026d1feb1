"""A folder is dptune's by what lies in it: the name `run.json` is not enough."""

import json
import os

import pytest

from dptune.runfile import json_files
from dptune.runfile.facts import Facts
from dptune.runfile.recognition import foreign, is_run_folder, record_of
from dptune.runfile.record import RunRecord

WRITTEN = json_files.text(RunRecord(dptune="0.1", command=["train.py"], world_size=2))
OTHERS = "was not written by dptune"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (WRITTEN, ""),
        ("\ufeff" + WRITTEN, ""),
        (json.dumps(json.loads(WRITTEN), sort_keys=True), ""),  # another tool wrote it again
        (WRITTEN[:30], ""),  # cut off
        (json.dumps(json.loads(WRITTEN))[:60], ""),
        ('{"dptune": null}', ""),
        ('{"schema_version": "0.2"}', ""),
        ('{"schema_version": 99, "schema": "dptune.run/99", "ranks": 2}', ""),
        ('{"schema_version": 99, "experiment": "a"}', OTHERS),
        ('{"schema_version": "one"}', OTHERS),
        ('{"lr": 0.1, "name": "my run"}', OTHERS),
        ('{"command": ["train.py"], "python": "3.12", "hosts": []}', OTHERS),
        ("[1]", OTHERS),
        ("null", OTHERS),
        ("", "is empty"),
        (" \n", "is empty"),
        ("run 7", "is not readable JSON"),
        ("[" * 100_000, "is not readable JSON"),
    ],
)
def test_what_a_run_json_is(tmp_path, content, why):
    (tmp_path / "run.json").write_text(content, encoding="utf-8")
    assert foreign(tmp_path / "run.json") == why
    assert is_run_folder(tmp_path) is (not why)


@pytest.mark.parametrize(
    "name", ["rank-00000.facts.json", "rank-00000.trace.json.gz", "rank-00001.detail.trace.json.gz"]
)
def test_files_with_the_names_of_dptune_make_a_run_folder_of_any_run_json(tmp_path, name):
    (tmp_path / "run.json").write_text("")
    assert not is_run_folder(tmp_path)
    (tmp_path / name).write_text("")
    assert is_run_folder(tmp_path)


def test_facts_alone_make_a_run_folder_and_traces_alone_do_not(tmp_path):
    (tmp_path / "rank-00000.trace.json.gz").write_text("")
    assert not is_run_folder(tmp_path)
    json_files.write(tmp_path / "rank-00000.facts.json", Facts(0))
    assert is_run_folder(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes of POSIX")
def test_a_pipe_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "run.json")
    assert foreign(tmp_path / "run.json") == "is not a regular file"


def test_no_record_is_made_of_another_tools_settings(tmp_path):
    """All fields of a record have defaults, so any object would fit."""
    (tmp_path / "run.json").write_text('{"lr": 0.1}')
    with pytest.raises(ValueError, match=r"^run\.json was not written by dptune$"):
        record_of(tmp_path)
    (tmp_path / "run.json").write_text(WRITTEN)
    assert record_of(tmp_path).command == ["train.py"]

"""`dptune demo --record`: run and link are measured here, and a link that cannot be is no reason to say nothing."""

from __future__ import annotations

import json

import pytest

from dptune.capture import links
from dptune.cli import main
from dptune.errors import CaptureError

pytestmark = pytest.mark.records


@pytest.fixture
def recorded(tmp_path, monkeypatch, capfd):
    """recorded(): the report of a demo recorded in a new folder, and what was said."""
    pytest.importorskip("torch", reason="recording needs torch")
    monkeypatch.chdir(tmp_path)

    def record():
        assert main(["demo", "--record", "--format", "json"]) == 0
        said = capfd.readouterr()
        return json.loads(said.out), said.err

    return record


@pytest.mark.thorough
def test_the_link_is_measured_too(recorded):
    report, said = recorded()
    assert report["measured"]["world_size"] == 2
    assert [one["basis"] for one in report["measured"]["links"] if one["kind"] == "all_reduce"].count("sweep") == 1
    assert "dptune: dptune profile --nproc-per-node 2 --untraced 40 --light 8 --detailed 1 " in said
    assert "dptune: dptune links --nproc-per-node 2 --kinds all_reduce --max-size 16m -o " in said


@pytest.mark.thorough
def test_a_link_that_cannot_be_measured(recorded, monkeypatch):
    def fails(*_):
        raise CaptureError("the ranks did not meet", "")

    monkeypatch.setattr(links, "sweep", fails)
    report, said = recorded()
    assert not any(one["basis"] == "sweep" for one in report["measured"]["links"])
    assert "dptune: the ranks did not meet" in said

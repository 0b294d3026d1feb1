"""Files that `torch.save` writes."""

import io

import pytest
import torch

from dptune.capture.injected.observe import saved_files
from dptune.capture.injected.observe.saved_files import SavedFiles


@pytest.fixture
def observed(monkeypatch):
    monkeypatch.setattr(torch, "save", torch.save)
    monkeypatch.setattr(torch.serialization, "save", torch.serialization.save)
    monkeypatch.setattr(saved_files, "save_calls", lambda frame: {})
    found = SavedFiles()
    found.install()
    return found


def test_paths_files_and_links(observed, tmp_path):
    path, link = tmp_path / "last.pt", tmp_path / "link.pt"
    torch.save({"step": 1}, path)
    line = torch.save.__code__.co_firstlineno  # of the wrapper: the script's line is another
    link.symlink_to(path)
    torch.save({"step": 2}, str(link))
    with path.open("wb") as file:
        torch.save({"step": 3}, file)
    (facts,) = observed.facts()
    assert (facts.path, facts.times) == (str(path.resolve()), 3)
    assert facts.where.split(":")[0].endswith("test_saved_files.py")
    assert int(facts.where.split(":")[1]) != line
    assert 0 < facts.began_ns <= facts.ended_ns
    assert torch.load(path) == {"step": 3}


def test_what_is_no_file_of_its_own(observed):
    torch.save(torch.ones(2), io.BytesIO())
    torch.save(torch.ones(2), "/dev/null")
    assert observed.facts() == []


def test_files_that_only_the_source_shows(observed, tmp_path, monkeypatch):
    last, best = (str((tmp_path / name).resolve()) for name in ("last.pt", "best.pt"))
    ahead = {last: "train.py:9", best: "train.py:12", "/dev/null": "train.py:15"}
    monkeypatch.setattr(saved_files, "save_calls", lambda frame: ahead)
    torch.save({}, last)
    observed.facts()
    monkeypatch.setattr(saved_files, "save_calls", lambda frame: {})  # the loop has ended
    assert [(facts.path, facts.times, facts.where == "train.py:12") for facts in observed.facts()] == [
        (last, 1, False),
        (best, 0, True),
    ]

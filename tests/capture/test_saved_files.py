"""Files that `torch.save` writes."""

import io

import pytest
import torch

from dptune.capture.injected.observe.saved_files import SavedFiles


@pytest.fixture
def observed(monkeypatch):
    monkeypatch.setattr(torch, "save", torch.save)
    monkeypatch.setattr(torch.serialization, "save", torch.serialization.save)
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

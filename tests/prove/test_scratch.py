"""The copy that trials run in."""

from pathlib import Path

import pytest

from dptune.prove import scratch


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    (folder / "lib").mkdir(parents=True)
    (folder / "train.py").write_text("print('train')\n")
    (folder / "lib" / "net.py").write_text("net = 1\n")
    (folder / "dptune-runs").mkdir()
    (folder / "dptune-runs" / "old").write_text("x")
    (folder / ".git").mkdir()
    (folder / "model.pt").write_bytes(bytes(scratch.LARGEST_COPIED_BYTES + 1))
    (folder / "env").mkdir()
    (folder / "env" / "pyvenv.cfg").write_text("home = /usr\n")
    (folder / "data").symlink_to(tmp_path)
    return folder


def test_small_files_are_copied_and_large_ones_linked(project, tmp_path):
    made = scratch.make(project, tmp_path / "copy")
    assert (made.path / "lib" / "net.py").read_text() == "net = 1\n"
    (made.path / "lib" / "net.py").write_text("net = 2\n")
    (made.path / "lib" / "new.txt").write_text("new")
    assert (project / "lib" / "net.py").read_text() == "net = 1\n"
    assert not (project / "lib" / "new.txt").exists()
    assert {path.name for path in made.path.iterdir() if path.is_symlink()} == {"model.pt", ".git", "env", "data"}
    assert not (made.path / "dptune-runs").exists()
    assert (made.path / "data").resolve() == tmp_path


def test_a_large_file_that_a_script_writes_over_is_found(project, tmp_path):
    made = scratch.make(project, tmp_path / "copy")
    assert made.written_over() == []
    (made.path / "model.pt").write_bytes(b"other")
    assert made.written_over() == [project / "model.pt"]


def test_a_folder_of_very_many_files_is_linked_as_a_whole(tmp_path):
    many = tmp_path / "project" / "images"
    many.mkdir(parents=True)
    for number in range(scratch.MOST_ENTRIES + 1):
        (many / f"{number}.png").touch()
    made = scratch.make(tmp_path / "project", tmp_path / "copy")
    assert (made.path / "images").is_symlink()


def test_a_copy_that_lies_inside_what_is_copied_does_not_copy_itself(tmp_path):
    (tmp_path / "train.py").write_text("")
    made = scratch.make(tmp_path, tmp_path / "runs" / "a" / "scratch")
    assert {path.name for path in Path(made.path).rglob("*")} <= {"train.py", "runs", "a"}

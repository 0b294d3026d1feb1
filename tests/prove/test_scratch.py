"""The copy that trials run in."""

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dptune.errors import RunError
from dptune.prove import scratch


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    (folder / "lib").mkdir(parents=True)
    (folder / "train.py").write_text("print('train')\n")
    (folder / "lib" / "net.py").write_text("net = 1\n")
    (folder / "dptune-runs" / "old").mkdir(parents=True)
    (folder / "dptune-runs" / "old" / "run.json").write_text("{}")
    (folder / "dptune-runs" / "latest").symlink_to("old")
    (folder / "dptune-runs" / "demo").mkdir()
    (folder / "dptune-runs" / "demo" / "train.py").write_text("print('demo')\n")
    (folder / ".git").mkdir()
    (folder / "data.bin").write_bytes(bytes(scratch.LARGEST_COPIED_BYTES + 1))
    (folder / "env").mkdir()
    (folder / "env" / "pyvenv.cfg").write_text("home = /usr\n")
    (folder / "data").symlink_to(tmp_path)
    return folder


def inside(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def fill(folder, count, text="mine"):
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / f"{number}.png").write_text(text)
    return folder


def test_small_files_are_copied_and_large_ones_linked(project, tmp_path):
    made = scratch.make(project, tmp_path / "copy")
    assert (made.path / "lib" / "net.py").read_text() == "net = 1\n"
    (made.path / "lib" / "net.py").write_text("net = 2\n")
    (made.path / "lib" / "new.txt").write_text("new")
    assert (project / "lib" / "net.py").read_text() == "net = 1\n"
    assert not (project / "lib" / "new.txt").exists()
    assert {path.name for path in made.path.iterdir() if path.is_symlink()} == {"data.bin", ".git", "env", "data"}
    assert [path.name for path in (made.path / "dptune-runs").iterdir()] == ["demo"]
    assert (made.path / "dptune-runs" / "demo" / "train.py").is_file()
    assert (made.path / "data").resolve() == tmp_path
    assert made.written_over() == {}
    assert made.left_out == {}


def test_a_large_file_that_a_script_writes_over_is_found(project, tmp_path):
    made = scratch.make(project, tmp_path / "copy")
    assert made.written_over() == {}
    (made.path / "data.bin").write_bytes(b"other")
    assert made.written_over() == {project / "data.bin": scratch.LARGE}


def test_what_lies_there_from_a_trial_that_was_killed_is_replaced(project, tmp_path):
    """And nothing that it links to is removed with it."""
    left = scratch.make(project, tmp_path / "copy")
    (left.path / "left.txt").write_text("left")
    (left.path / "locked").mkdir(mode=0o000)
    made = scratch.make(project, tmp_path / "copy")
    assert not (made.path / "left.txt").exists()
    assert not (made.path / "locked").exists()
    assert (made.path / "train.py").exists()
    assert (project / "data.bin").stat().st_size > scratch.LARGEST_COPIED_BYTES
    scratch.clear(made.path)
    made.path.symlink_to(project)
    assert not scratch.make(project, made.path).path.is_symlink()
    assert (project / "train.py").exists()


# Links that lead out of the folder.


def test_what_is_written_through_a_linked_folder_is_found(project, tmp_path):
    """Over, added, removed, and deeper; but not what comes and goes, and not a package's caches."""
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "epochs").mkdir(parents=True)
    for name in ("last.pt", "old.pt", "epochs/1.pt", "kept.pt"):
        (elsewhere / name).write_text("mine")
    (project / "ckpt").symlink_to(elsewhere)
    made = scratch.make(project, tmp_path / "copy")
    ckpt = made.path / "ckpt"
    (ckpt / "last.pt").write_text("a trial's")
    (ckpt / "old.pt").unlink()
    (ckpt / "new.pt").write_text("a trial's")
    (ckpt / "epochs" / "1.pt").write_text("a trial's")
    (ckpt / "while.tmp").write_text("")
    (ckpt / "while.tmp").unlink()
    (ckpt / "__pycache__").mkdir()
    assert (elsewhere / "last.pt").read_text() == "a trial's"
    names = ("last.pt", "old.pt", "new.pt", "epochs/1.pt")
    assert made.written_over() == dict.fromkeys((elsewhere / name for name in names), scratch.FOLDER_LINK)


def test_a_link_to_a_small_file_is_a_copy_of_the_file(project, tmp_path):
    (tmp_path / "config.yaml").write_text("mine")
    (project / "config.yaml").symlink_to(tmp_path / "config.yaml")
    (project / "samples.bin").symlink_to(tmp_path / "samples.bin")
    (tmp_path / "samples.bin").write_bytes(bytes(scratch.LARGEST_COPIED_BYTES + 1))
    made = scratch.make(project, tmp_path / "copy")
    (made.path / "config.yaml").write_text("a trial's")
    assert (tmp_path / "config.yaml").read_text() == "mine"
    assert made.written_over() == {}
    with (made.path / "samples.bin").open("ab") as file:
        file.write(b"more")
    assert made.written_over() == {tmp_path / "samples.bin": scratch.LARGE}


def test_a_checkpoint_is_copied_however_large_as_long_as_there_is_room(project, tmp_path, monkeypatch):
    """A script that saves it again does not reach the user's own; one that has no copy is named before."""
    large = bytes(scratch.LARGEST_COPIED_BYTES + 1)
    for name in ("net.pt", "runs.pth.tar"):
        (project / name).write_bytes(large)
    made = scratch.make(project, tmp_path / "copy")
    (made.path / "net.pt").write_text("a trial's")
    (made.path / "runs.pth.tar").write_text("a trial's")
    assert (project / "net.pt").read_bytes() == (project / "runs.pth.tar").read_bytes() == large
    assert (made.exposed(), made.written_over()) == ({}, {})
    monkeypatch.setattr(scratch, "MOST_COPIED_BYTES", len(large))
    made = scratch.make(project, tmp_path / "copy")
    assert made.exposed() == {project / "runs.pth.tar": scratch.LARGE_TOGETHER}


def test_a_link_within_the_folder_leads_to_the_copy(project, tmp_path):
    (project / "steps").mkdir()
    (project / "steps" / "5.pt").write_text("mine")
    (project / "latest.pt").symlink_to("steps/5.pt")
    (project / "current").symlink_to("steps")
    (project / "steps" / "up").symlink_to("..")
    made = scratch.make(project, tmp_path / "copy")
    (made.path / "latest.pt").write_text("a trial's")
    (made.path / "current" / "6.pt").write_text("a trial's")
    (made.path / "steps" / "up" / "train.py").write_text("a trial's")
    assert (made.path / "steps" / "5.pt").read_text() == "a trial's"
    assert inside(project / "steps") == ["5.pt", "up"]
    assert (project / "steps" / "5.pt").read_text() == "mine"
    assert (project / "train.py").read_text() == "print('train')\n"
    assert made.written_over() == {}


def test_what_a_link_to_nothing_brings_about_is_found(project, tmp_path):
    (project / "out.txt").symlink_to(tmp_path / "out.txt")
    made = scratch.make(project, tmp_path / "copy")
    assert made.written_over() == {}
    (made.path / "out.txt").write_text("a trial's")
    assert made.written_over() == {tmp_path / "out.txt": scratch.LINK}


def test_the_recording_itself_does_not_count_as_written(tmp_path):
    """Though a link leads to where dptune writes while a trial runs."""
    project, runs = tmp_path / "project", tmp_path / "runs"
    (runs / "base" / "verified" / "x").mkdir(parents=True)
    (runs / "base" / "run.json").write_text("{}")
    project.mkdir()
    (project / "runs").symlink_to(runs)
    made = scratch.make(project, runs / "base" / "verified" / "x" / "scratch")
    (runs / "base" / "verified" / "x" / "trial-001-A").mkdir()
    assert made.written_over() == {}


# Folders of very many files.


def test_a_folder_of_very_many_files_is_linked_as_a_whole(tmp_path):
    many = fill(tmp_path / "project" / "images", scratch.MOST_ENTRIES + 1)
    made = scratch.make(tmp_path / "project", tmp_path / "copy")
    assert (made.path / "images").is_symlink()
    assert (made.written_over(), made.unwatched) == ({}, {})
    (made.path / "images" / "0.png").write_text("a trial's")
    assert made.written_over() == {many / "0.png": scratch.MANY}
    for number in range(12):
        (made.path / "images" / f"{number}.png").write_text("a trial's")
    assert made.written_over() == {many: f"{scratch.MANY}; 12 of its files"}


def test_what_of_a_linked_folder_is_not_looked_at_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(scratch, "MOST_WATCHED_ENTRIES", 5)
    elsewhere = fill(tmp_path / "elsewhere", 9)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "data").symlink_to(elsewhere)
    made = scratch.make(tmp_path / "project", tmp_path / "copy")
    assert made.unwatched == {elsewhere: f"{scratch.FOLDER_LINK}, and only 5 of its files are looked at"}
    assert made.written_over() == {}
    (elsewhere / "new.png").write_text("new")
    assert made.written_over() == {elsewhere: scratch.FOLDER_LINK}


def test_of_very_many_files_in_all_the_nearest_are_copied(tmp_path, monkeypatch):
    """However many folders there are, and though what lies deep comes first by name."""
    monkeypatch.setattr(scratch, "MOST_COPIED_ENTRIES", 100)
    project = tmp_path / "project"
    for name in "abcdef":
        fill(project / name / "deep" / "deeper", 30)
    (project / "train.py").write_text("")
    (project / "z").mkdir()
    (project / "z" / "net.py").write_text("")
    made = scratch.make(project, tmp_path / "copy")
    linked = [path for path in made.path.rglob("*") if path.is_symlink()]
    assert [path.relative_to(made.path).parts[1:] for path in linked] == [("deep", "deeper")] * len(linked)
    assert 0 < len(linked) < 6
    assert not (made.path / "train.py").is_symlink()
    assert (made.path / "z" / "net.py").exists()
    assert not (made.path / "z").is_symlink()
    (linked[0] / "0.png").write_text("a trial's")
    assert list(made.written_over().values()) == [scratch.MANY_TOGETHER]


def test_a_folder_at_the_top_of_more_files_than_are_copied_has_them_all(tmp_path, monkeypatch):
    monkeypatch.setattr(scratch, "MOST_COPIED_ENTRIES", 10)
    project = fill(tmp_path / "project", 30)
    made = scratch.make(project, tmp_path / "copy")
    assert len(list(made.path.iterdir())) == 30
    assert sum(path.is_symlink() for path in made.path.iterdir()) == 20
    linked = next(path for path in made.path.iterdir() if path.is_symlink())
    linked.write_text("a trial's")
    assert made.written_over() == {project / linked.name: scratch.MANY_TOGETHER}


def test_files_too_large_together_are_linked(tmp_path, monkeypatch):
    monkeypatch.setattr(scratch, "MOST_COPIED_BYTES", 10)
    project = fill(tmp_path / "project", 4)
    made = scratch.make(project, tmp_path / "copy")
    assert [path.name for path in sorted(made.path.iterdir()) if path.is_symlink()] == ["2.png", "3.png"]
    (made.path / "3.png").write_text("a trial's")
    assert made.written_over() == {project / "3.png": scratch.LARGE_TOGETHER}


# Where the copy lies.


def test_other_recordings_are_not_copied(tmp_path):
    (tmp_path / "project" / "runs" / "one").mkdir(parents=True)
    (tmp_path / "project" / "runs" / "one" / "rank-00000.facts.json").write_text("{}")
    (tmp_path / "project" / "runs" / "notes.txt").write_text("mine")
    made = scratch.make(tmp_path / "project", tmp_path / "copy")
    assert {path.name for path in made.path.rglob("*")} == {"runs", "notes.txt"}


def test_a_copy_that_lies_inside_what_is_copied_does_not_copy_itself(tmp_path):
    (tmp_path / "train.py").write_text("")
    made = scratch.make(tmp_path, tmp_path / "runs" / "a" / "scratch")
    assert {path.name for path in Path(made.path).rglob("*")} <= {"train.py", "runs", "a"}


def test_a_recording_beside_data_leaves_the_data(tmp_path):
    run = tmp_path / "data" / "run1"
    (run / "verified" / "x" / "trial-001-A").mkdir(parents=True)
    (run / "run.json").write_text("{}")
    (tmp_path / "data" / "train.txt").write_text("text")
    (tmp_path / "data" / "more").mkdir()
    (tmp_path / "data" / "more" / "test.txt").write_text("text")
    (tmp_path / "data" / "__pycache__").mkdir()
    made = scratch.make(tmp_path, run / "verified" / "x" / "scratch")
    assert inside(made.path) == ["data", "data/more", "data/more/test.txt", "data/train.txt"]


# What cannot be read.


def test_what_leads_nowhere_or_is_no_file_stops_nothing(project, tmp_path):
    (project / "loop").symlink_to("loop")
    (project / "through").symlink_to("train.py/x")
    os.mkfifo(project / "pipe")
    made = scratch.make(project, tmp_path / "copy")
    assert (made.path / "train.py").exists()
    assert made.left_out == {
        project / "loop": f"it cannot be followed: {os.strerror(errno.ELOOP)}",
        project / "through": f"it cannot be followed: {os.strerror(errno.ENOTDIR)}",
        project / "pipe": "it is neither a file nor a folder",
    }
    with pytest.raises(OSError, match="Too many levels"):
        (made.path / "loop").read_text()


AS_ANOTHER_USER = """\
import os, sys
from pathlib import Path
from dptune.prove import scratch
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
made = scratch.make(Path(sys.argv[1]), Path(sys.argv[2]))
for path, why in made.left_out.items():
    print(path.name, why)
print(sorted(os.listdir(made.path)), made.written_over())
made = scratch.make(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def test_what_may_not_be_read_is_linked_and_told(tmp_path):
    """As it was: the script meets the same error there as in the folder itself."""
    place = Path(tempfile.gettempdir()) / f"dptune-test-{os.getpid()}"  # tmp_path is closed to others
    project, copies = place / "project", place / "copies"
    try:
        for folder, mode in ((place, 0o755), (project, 0o755), (copies, 0o777), (project / "locked", 0o755)):
            folder.mkdir()
            folder.chmod(mode)
        (project / "train.py").write_text("")
        (project / "secret.txt").write_text("x")
        (project / "locked" / "x").write_text("x")
        (project / "listed").mkdir()
        (project / "listed" / "x").write_text("x")
        (project / "behind").symlink_to("locked/x")
        (project / "secret.txt").chmod(0o000)
        (project / "locked").chmod(0o000)
        (project / "listed").chmod(0o444)
        words = [sys.executable, "-c", AS_ANOTHER_USER, str(project), str(copies / "scratch")]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert set(done.stdout.splitlines()) == {
            "locked it cannot be read: Permission denied",
            "secret.txt it cannot be read: Permission denied",
            "x it cannot be read: Permission denied",
            "behind it cannot be followed: Permission denied",
            "['behind', 'listed', 'locked', 'secret.txt', 'train.py'] {}",
        }
    finally:
        for folder in (project / "locked", project / "listed"):
            folder.chmod(0o755)
        shutil.rmtree(place)


def test_a_folder_that_cannot_be_copied_at_all_is_an_error_in_words(tmp_path):
    with pytest.raises(RunError, match="gone cannot be copied for trials: No such file or directory"):
        scratch.make(tmp_path / "gone", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_where_there_is_no_room_nothing_is_left(project, tmp_path, monkeypatch):
    def full(source, target):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    monkeypatch.setattr(shutil, "copy2", full)
    with pytest.raises(RunError, match="No space left on device") as caught:
        scratch.make(project, tmp_path / "copy")
    assert caught.value.hint == "free disk space next to the recording"
    assert not (tmp_path / "copy").exists()


def test_what_is_beside_the_folder_is_found_from_a_copy_with_links(tmp_path: Path) -> None:
    """`../data`, and what is beside the folders above; what the copy changes in the folder stays there."""
    source = tmp_path / "group" / "project"
    source.mkdir(parents=True)
    (source / "train.py").write_text("as it is")
    for data in (tmp_path / "group" / "data", tmp_path / "shared"):
        data.mkdir()
        (data / "samples").write_text("samples")
    made = scratch.make(source, tmp_path / "copy", beside=True)
    assert (made.path / "../data/samples").read_text() == "samples"
    assert (made.path / "../../shared/samples").read_text() == "samples"
    assert made.path.resolve().is_relative_to(tmp_path / "copy")
    assert not (made.path / "../../copy").exists()  # no copy holds itself
    scratch.rewrite(made, {"train.py": b"patched"})
    assert (made.path / "train.py").read_text() == "patched"
    assert (source / "train.py").read_text() == "as it is"
    scratch.clear(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    assert (tmp_path / "group" / "data" / "samples").read_text() == "samples"


def test_a_file_of_which_there_is_no_copy_is_not_rewritten(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "model.py").write_text("as it is")
    (tmp_path / "project" / "lib").symlink_to(tmp_path / "elsewhere")
    made = scratch.make(tmp_path / "project", tmp_path / "copy")
    with pytest.raises(RunError, match=r"lib/model.py is linked, not copied, for trials"):
        scratch.rewrite(made, {"lib/model.py": b"patched"})
    assert (tmp_path / "elsewhere" / "model.py").read_text() == "as it is"

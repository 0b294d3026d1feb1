"""When a side is another one: its code, not what it writes."""

import os

import pytest

from dptune.capture.interpreter import Interpreter
from dptune.capture.launch import Script, alone
from dptune.prove.identity import changed, digest, files, written_since


@pytest.fixture
def project(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "train.py").write_text("import lib.net\n")
    (tmp_path / "lib" / "net.py").write_text("net = 1\n")
    (tmp_path / "ds.json").write_text('{"stage": 1}')
    return tmp_path


def of(folder, torch="2.13.0"):
    launch = started(torch=torch)
    return digest(folder, launch, files(folder, launch, folder / "run"))


def started(script="train.py", torch="2.13.0"):
    return alone(Script(script, ("--config=ds.json",)), Interpreter("python", (3, 11), torch))


@pytest.mark.parametrize("name", ["train.py", "lib/net.py", "ds.json", "lib/new.py", "new.yaml"])
def test_other_code_is_another_side(project, name):
    before = of(project)
    assert of(project) == before
    (project / name).write_text("other")
    assert of(project) != before


def test_torch_and_the_environment_belong_to_it(project, monkeypatch):
    before = of(project)
    assert of(project, "2.12.0") != before
    monkeypatch.setenv("OMP_NUM_THREADS", "17")
    assert of(project) != before


@pytest.mark.parametrize(
    "name",
    [
        "log.txt",
        "model.pt",
        "metrics.json",
        "__pycache__/net.py",
        ".git/hook.py",
        "run/a.json",
        "env/b.py",
        "old/run.json",
    ],
)
def test_what_is_written_or_not_the_users_does_not(project, name):
    (project / "env").mkdir()
    (project / "env" / "pyvenv.cfg").touch()
    (project / "old").mkdir()
    (project / "old" / "rank-00000.facts.json").touch()
    before = of(project)
    (project / name).parent.mkdir(exist_ok=True)
    (project / name).write_text("other")
    assert of(project) == before


def test_the_place_does_not(project, tmp_path_factory):
    import shutil

    other = tmp_path_factory.mktemp("other") / "copy"
    shutil.copytree(project, other)
    assert of(other) == of(project)


def test_code_behind_a_link_or_beside_a_script_that_lies_elsewhere_belongs_to_it(project, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    for name in ("train.py", "net.py"):
        (other / name).write_text("1")
    (project / "linked").symlink_to(other)
    (other / "round").symlink_to(project)
    before = of(project)
    (other / "net.py").write_text("2")
    assert of(project) != before
    (project / "linked").unlink()
    launch = started(str(other / "train.py"))
    for name in ("data/deep/far.py", "package/near.py", "conf.yaml"):
        (other / name).parent.mkdir(parents=True, exist_ok=True)
        (other / name).write_text("1")
    before = files(project, launch, project / "run")
    assert {path.name for path in before if path.is_relative_to(other)} == {"train.py", "net.py", "near.py"}
    (other / "net.py").write_text("3")
    assert files(project, launch, project / "run") != before
    assert changed(project, before) == [str(other / "net.py")]


def test_what_changed_since(project):
    code = files(project, started(), project / "run")
    assert changed(project, code) == []
    newest = max(path.stat().st_mtime for path in code)
    assert written_since(project, code, started(), newest) == []
    os.utime(project / "lib" / "net.py", (newest + 5, newest + 5))
    assert written_since(project, code, started(), newest) == ["lib/net.py"]
    assert changed(project, code) == []  # of the same content
    (project / "ds.json").write_text("{}")
    (project / "train.py").unlink()
    (project / "new.py").touch()  # what a run may have written
    assert changed(project, code) == ["ds.json", "train.py"]
    assert changed(project, code, programs_alone=True) == ["train.py"]


def test_of_what_the_script_does_not_use_nothing_is_said(project):
    """fixed.py lies beside the script; layers.py is imported by what it imports, job.yaml read by name."""
    (project / "lib" / "net.py").write_text("from lib import layers\nCONFIG = 'job.yaml'\n")
    for name in ("fixed.py", "lib/layers.py", "lib/__init__.py", "job.yaml", "other.yaml"):
        (project / name).write_text("")
    code = files(project, started(), project / "run")
    used = ["ds.json", "job.yaml", "lib/__init__.py", "lib/layers.py", "lib/net.py", "train.py"]
    assert written_since(project, code, started(), 0) == used
    assert len(written_since(project, code, started("elsewhere/run"), 0)) == 8  # what that uses is not known

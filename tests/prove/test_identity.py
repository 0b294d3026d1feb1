"""When a side is another one: its code, not what it writes."""

import pytest

from dptune.capture.interpreter import Interpreter
from dptune.capture.launch import Script, alone
from dptune.prove.identity import digest


@pytest.fixture
def project(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "train.py").write_text("import lib.net\n")
    (tmp_path / "lib" / "net.py").write_text("net = 1\n")
    (tmp_path / "ds.json").write_text('{"stage": 1}')
    return tmp_path


def of(folder, torch="2.13.0"):
    return digest(
        folder, alone(Script("train.py", ("--config=ds.json",)), Interpreter("python", (3, 11), torch)), folder / "run"
    )


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

"""What a run folder names is executed only where the user recorded it, or agreed."""

import contextlib
import io
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from dptune.capture import launch, recording
from dptune.capture.interpreter import Interpreter
from dptune.capture.launch import Script
from dptune.capture.options import Options
from dptune.cli import main
from dptune.commands.shared import consent
from dptune.errors import RunError
from dptune.runfile import json_files, origin
from dptune.runfile.origin import Origin
from dptune.runfile.paths import RUN_JSON
from dptune.runfile.record import RunRecord

from .. import in_process  # noqa: TID252 - tests are no installed package

SAMPLE = Path(__file__).parents[1] / "rules" / "recorded" / "runs" / "same-order"  # a small one
SET = ("--set", "ddp.bucket_cap_mb=1")
OTHERS = {"machine": "0123456789abcdef", "user": "fedcba9876543210"}
of_users = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="the platform knows no users")


class Planted:
    """A run folder whose interpreter leaves a mark where it is executed."""

    def __init__(self, place: Path) -> None:
        self.folder = shutil.copytree(SAMPLE, place / "run")
        self.mark, self.python = place / "mark", place / "python3"
        self.python.write_text(f"#!/bin/sh\ntouch {self.mark}\nexit 1\n")
        self.python.chmod(0o755)
        project = place / "project"
        project.mkdir()
        (project / "train.py").write_text("")
        self.says(
            python=str(self.python),
            working_directory=str(project),
            command=["python", "train.py", "--epochs", "3"],
            settings={"env.LD_PRELOAD": "/tmp/other.so", "loader.num_workers": 2},
        )

    def says(self, **more: object) -> None:
        """Write that into its run.json."""
        path = self.folder / RUN_JSON
        path.write_text(json.dumps({**json.loads(path.read_text()), **more}))

    @property
    def executed(self) -> bool:
        return self.mark.exists()


@pytest.fixture
def planted(tmp_path):
    return Planted(tmp_path)


def test_a_run_of_others_is_shown_and_not_run_without_a_terminal(planted, capsys):
    planted.says(origin=OTHERS)
    assert main(["verify", str(planted.folder), *SET]) == 2
    said = capsys.readouterr()
    assert not planted.executed
    assert said.out == ""
    lines = said.err.splitlines()
    assert lines[0] == f"dptune: {planted.folder} was not recorded by you on this machine. Verifying it runs:"
    assert lines[1:6] == [
        "dptune:   command      torchrun --nproc-per-node 2 train.py --epochs 3",
        f"dptune:   interpreter  {planted.python}",
        f"dptune:   directory    {planted.folder.parent / 'project'}",
        "dptune:   settings     loader.num_workers=2 ddp.bucket_cap_mb=1",
        "dptune:   environment  yours, with DPTUNE_TRIAL=1 WANDB_MODE=disabled COMET_MODE=disabled"
        " LD_PRELOAD=/tmp/other.so",
    ]
    assert "there is no terminal to ask for confirmation" in lines[6]
    assert lines[7] == "hint: if you trust it, run the same command with --yes"


@pytest.mark.parametrize(
    ("recorded_by", "options", "executed"),
    [
        (None, [], False),  # nothing says who recorded it: whoever unpacks an archive owns it
        ("here", [], True),
        ("others", [], False),
        ("other machine", [], False),
        ("other user", [], False),
        ("others", ["--yes"], True),
        ("others", ["-y"], True),
        ("others", ["--here"], False),
        ("others", ["--", "train.py"], False),
    ],
)
def test_the_interpreter_of_a_run_folder(planted, recorded_by, options, executed, monkeypatch, capsys):
    """It is asked for its torch before anything is run with it: even that is not done before the user agreed."""
    monkeypatch.chdir(planted.folder.parent / "project")
    here = origin.here()
    said = {
        "here": {"machine": here.machine, "user": here.user},
        "others": OTHERS,
        "other machine": {**OTHERS, "user": here.user},
        "other user": {**OTHERS, "machine": here.machine},
    }
    if recorded_by:
        planted.says(origin=said[recorded_by])
    monkeypatch.setattr("dptune.capture.interpreter._candidates", lambda: [])
    assert main(["verify", str(planted.folder), *SET, *options]) == 2
    assert planted.executed is executed
    assert ("was not recorded by you" in capsys.readouterr().err) is not executed


def test_a_program_that_a_run_folder_names_is_not_executed_either(planted, capsys):
    """As a launcher of its own: its Python is asked as well."""
    program = planted.folder.parent / "launch"
    program.write_text(f"#!{planted.python}\n")
    program.chmod(0o755)
    planted.says(origin=OTHERS, launched_by="command", command=[str(program), "train.py"])
    assert main(["verify", str(planted.folder), *SET]) == 2
    assert not planted.executed
    assert "interpreter  set by the command" in capsys.readouterr().err


@of_users
@pytest.mark.parametrize("whose", [".", RUN_JSON])
def test_a_folder_of_another_user_is_foreign_whatever_it_says(planted, whose, monkeypatch, capsys):
    here = origin.here()
    planted.says(origin={"machine": here.machine, "user": here.user})
    inode = (planted.folder / whose).stat().st_ino
    ours, real = os.geteuid(), Path.stat

    def owned(path, **how):
        found = real(path, **how)
        return os.stat_result([*found[:4], ours + 1, *found[5:10]]) if found.st_ino == inode else found

    monkeypatch.setattr(Path, "stat", owned)
    assert main(["verify", str(planted.folder), *SET]) == 2
    assert not planted.executed
    assert "was not recorded by you on this machine" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="a pseudo-terminal of POSIX")
@pytest.mark.parametrize(("answer", "executed"), [("n", False), ("y", True)])
def test_on_a_terminal_it_asks(planted, answer, executed):
    """In a process of its own."""
    import pty

    planted.says(origin=OTHERS)
    ours, theirs = pty.openpty()
    out = planted.folder.parent / "stdout"
    with out.open("w") as stdout:
        words = ("verify", str(planted.folder), *SET)
        process = in_process.forked(
            *words, streams=(theirs, stdout.fileno(), theirs), before=lambda: os.closerange(3, max(ours, theirs) + 1)
        )
    os.close(theirs)
    os.write(ours, f"{answer}\n".encode())
    printed = b""
    try:
        while more := os.read(ours, 4096):
            printed += more
    except OSError:  # the other end was closed
        pass
    os.close(ours)
    assert process.wait() in ((2,) if not executed else (0, 1, 2))
    assert out.read_text() == ""
    assert planted.executed is executed
    assert b"run it? [y/N]" in printed
    assert (b"was run\r\n" in printed) is not executed


@pytest.mark.parametrize(("answer", "agreed"), [("", False), ("sure", False), ("yes", True), ("YES", True)])
def test_who_does_not_answer_yes_does_not_agree(planted, answer, agreed, monkeypatch, capsys):
    monkeypatch.setattr(consent, "_is_terminal", lambda stream: True)
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{answer}\n"))
    record = json_files.read(planted.folder / RUN_JSON, RunRecord)
    with contextlib.nullcontext() if agreed else pytest.raises(RunError, match="was run"):
        consent.ask_before_running(planted.folder, record, [], ".", {}, agreed=False)
    assert "run it? [y/N]" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["report", "--format", "json"], ["report", "--patch"], ["whatif"], ["check"], ["compare"]]
)
def test_what_only_reads_executes_nothing(planted, words, capsys):
    planted.says(origin=OTHERS)
    verb, *options = words
    main([verb, *[str(planted.folder)] * (2 if verb == "compare" else 1), *options])
    capsys.readouterr()
    assert not planted.executed


def test_what_is_kept_names_neither_user_nor_machine(tmp_path):
    """And it is the same each time, and read back as written."""
    found = origin.here()
    assert found == origin.here()
    assert found.machine != found.user
    assert all(len(word) == 16 and int(word, 16) >= 0 for word in (found.machine, found.user))
    json_files.write(tmp_path / RUN_JSON, RunRecord(origin=found))
    assert json_files.read(tmp_path / RUN_JSON, RunRecord).origin == found
    (tmp_path / RUN_JSON).write_text('{"schema_version": "0.2"}')
    assert json_files.read(tmp_path / RUN_JSON, RunRecord).origin == Origin()


@of_users
def test_another_user_of_the_machine_has_another_digest(monkeypatch):
    ours, number = origin.here(), os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: number + 1)
    theirs = origin.here()
    assert theirs.machine == ours.machine
    assert theirs.user != ours.user


def test_without_an_identity_the_machines_name_counts(monkeypatch, tmp_path):
    monkeypatch.setattr(origin, "_MACHINE_IDS", (tmp_path / "none", tmp_path))
    monkeypatch.setattr("socket.gethostname", lambda: "a")
    first = origin.here()
    monkeypatch.setattr("socket.gethostname", lambda: "b")
    assert origin.here().machine != first.machine


def test_a_recording_says_who_made_it(monkeypatch):
    monkeypatch.delenv("DPTUNE_CAPTURE", raising=False)
    started = launch.alone(Script("train.py"), Interpreter(sys.executable, (3, 11, 0), "2.13.0"))
    record = recording.begin(started, Options(tokens=4096, samples=256))
    assert record.origin == origin.here()
    assert (record.tokens_per_step, record.samples_per_step) == (4096, 256)

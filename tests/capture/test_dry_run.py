"""`--dry-run` says what a recording would be, and the refusals that come before anything is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dptune.capture import ranks
from dptune.errors import UsageError
from dptune.runfile.ranks import spans

from .. import in_process  # noqa: TID252 - tests are no installed package
from .launching import environment_after, run_here


@pytest.fixture
def place(tmp_path: Path) -> Path:
    pytest.importorskip("torch", reason="recording needs torch")
    (tmp_path / "train.py").write_text("raise SystemExit('started')\n")
    return tmp_path


def dry(place: Path, *words: str, env: dict[str, str] | None = None) -> tuple[subprocess.CompletedProcess[str], str]:
    done = profile("--dry-run", *words, cwd=place, **(env or {}))
    return done, " ".join(done.stdout.split())


def profile(*words: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return in_process.dptune("profile", *words, cwd=cwd, **{"PATH": path, **env})


def test_what_would_be_recorded(place: Path) -> None:
    before = sorted(place.iterdir())
    options = (
        "--nproc-per-node",
        "4",
        "--ranks",
        "0,2-3",
        "--run-dir",
        "out/run",
        "--window-time",
        "30",
        "--light",
        "7",
    )
    done, said = dry(place, *options, "train.py", "--api-key", "s3cret", "--epochs", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert "--nproc-per-node=4 train.py --api-key '<redacted>' --epochs 2" in said
    assert "folder out/run" in said
    assert "ranks 0,2-3 of 4" in said
    assert "light 7 steps traced" in said
    assert "time limit per window 30 s" in said
    assert "adds DPTUNE_CAPTURE (what these lines say) adds PYTHONPATH=" in said
    assert "for 3 ranks" in said
    assert "MB free" in said or "GB free" in said
    assert "torch" in said
    assert "SystemExit out of optimizer.step()" in said
    assert "s3cret" not in done.stdout
    assert sorted(place.iterdir()) == before


def test_of_a_command_and_of_the_environment_alone(place: Path) -> None:
    done, said = dry(place, "--continue", "torchrun", "--nproc-per-node", "2", "train.py")
    assert done.returncode == 0, done.stderr
    assert "command torchrun --nproc-per-node 2 train.py" in said
    assert "the script runs to its end (--continue)" in said
    done, said = dry(place, "--env", env={"NCCL_DEBUG": "INFO"})
    assert done.returncode == 0, done.stderr
    assert "NCCL_DEBUG=INFO" in said
    assert not (place / "dptune-runs").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--light", "2"), "--light 2"),
        (("--light", "1", "--detailed", "0"), "--light 1"),
        (("--light", "0", "--detailed", "2"), "--detailed 2"),
        (("--light", "3", "--detailed", "1"), None),
        (("--light", "0", "--detailed", "0"), None),
    ],
)
def test_too_few_traced_steps_are_told_at_once(place: Path, words: tuple[str, ...], told: str | None) -> None:
    said = f"dptune: {told}: a verdict needs 3 traced steps\n" if told else ""
    assert dry(place, *words, "train.py")[0].stderr == said
    if told:
        started = run_here("profile", *words, "train.py", cwd=place)
        assert started.err.startswith(said)


REFUSED = {
    "a command with torchrun's options": (
        ("--nproc-per-node", "2", "torchrun", "train.py"),
        "--nproc-per-node does not apply to a command that starts the ranks itself",
    ),
    "several nodes without a name": (
        ("--nnodes", "2", "train.py"),
        "several nodes need the same run folder name",
    ),
    "--env with a script": (("--env", "train.py"), "--env takes no script and no launcher's options: 'train.py'"),
    "a rank that is not there": (
        ("--nproc-per-node", "2", "--ranks", "0,2", "train.py"),
        "--ranks: no rank 2",
    ),
    "nonsense for ranks": (("--ranks", "0,one", "train.py"), "--ranks: 'one' is not a rank"),
    "neither script nor program": (("nowhere.py",), "no such script: nowhere.py"),
    "nothing": ((), "there is nothing to record"),
    "a folder that is no program": ((".",), ". is a folder without __main__.py"),
    "windows without steps": (
        ("--untraced", "0", "--light", "0", "--detailed", "0", "train.py"),
        "nothing would be recorded: all windows have 0 steps",
    ),
    "a folder that torch cannot write to": (
        ("--run-dir", os.fsdecode(b"r\xffn"), "train.py"),
        "torch cannot write to a folder whose path is not UTF-8: ",
    ),
    "nonsense for ranks per node": (
        ("--nproc-per-node", "many", "train.py"),
        "argument --nproc-per-node: 'many' is not a whole number",
    ),
    "nodes the wrong way round": (("--nnodes", "4:2", "train.py"), "argument --nnodes: 4:2 ends before it starts"),
    "no seconds": (("--stall-timeout", "0", "train.py"), "argument --stall-timeout: must be above 0"),
}


@pytest.mark.parametrize("columns", ["60", "100", "300"])
def test_the_lines_fit_the_terminal(place: Path, columns: str) -> None:
    done, said = dry(place, "train.py", env={"COLUMNS": columns})
    widest = max(len(line) for line in done.stdout.splitlines() if " facts" not in line and "/" not in line)
    assert min(int(columns), 100) - 20 < widest <= min(int(columns), 100)
    assert "environment variables of NCCL" in said


def test_a_recording_inside_a_recording_is_refused(place: Path) -> None:
    made = run_here("profile", "--env", "--run-dir", "run", cwd=place)
    done = run_here("profile", "train.py", cwd=place, env=environment_after(made.out, place))
    assert done.status == 2
    assert "dptune: error: this process is already being recorded\nhint: " in done.err
    assert "unset DPTUNE_CAPTURE" in done.err
    assert not list((place / "dptune-runs").glob("*-train"))
    assert in_process.dptune("rules", "list", cwd=place, DPTUNE_CAPTURE="{}").returncode == 0


def test_a_recording_is_no_script_and_what_takes_it_is_named(place: Path) -> None:
    recorded = place / "recorded"
    recorded.mkdir()
    (recorded / "run.json").write_text("{}")
    done = profile("recorded", cwd=place)
    assert done.stderr.splitlines() == [
        "dptune: error: recorded is a recording, not a script",
        "hint: `dptune report recorded` shows it, `dptune tune --run recorded` starts from it",
    ]


@pytest.mark.parametrize("case", REFUSED, ids=[name.replace(" ", "-") for name in REFUSED])
@pytest.mark.parametrize("way", [(), ("--dry-run",)], ids=["", "dry-run"])
def test_what_is_refused_is_one_sentence_and_a_hint(place: Path, case: str, way: tuple[str, ...]) -> None:
    words, sentence = REFUSED[case]
    done = profile(*way, *words, cwd=place)
    lines = done.stderr.splitlines()
    assert done.returncode == 2
    assert lines[0].startswith(f"dptune: error: {sentence}"), done.stderr
    assert lines[1].startswith("hint: ")
    assert len(lines) == 2
    assert [path.name for path in place.iterdir()] == ["train.py"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", (0,)), ("0,7,64-66", (0, 7, 64, 65, 66)), ("3,1-4,3", (1, 2, 3, 4)), (" 1 , 2 ", (1, 2))],
)
def test_ranks(text: str, expected: tuple[int, ...]) -> None:
    assert ranks.parse(text) == expected
    assert ranks.parse(spans(expected, ",")) == expected


@pytest.mark.parametrize(
    "text", ["", ",", "0,", "-1", "1-", "5-3", "1..3", "0x1", "1-2-3", "0-99999999", "٣", "0-9999,20000"]
)
def test_what_is_no_list_of_ranks(text: str) -> None:
    with pytest.raises(UsageError, match="--ranks"):
        ranks.parse(text)

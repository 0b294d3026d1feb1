"""Tab, as bash itself asks for it."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import argcomplete
import pytest

from dptune.cli import VERBS, main
from dptune.commands.completion import SHELLS
from dptune.commands.shared.gate_formats import FORMATS
from dptune.knobs import KNOBS

BIN = Path(sys.executable).parent
ASK = """
eval "$COMPLETION"
COMP_LINE="$LINE" COMP_POINT=${#LINE} COMP_TYPE=9
read -ra COMP_WORDS <<< "$LINE"
[[ "$LINE" == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_python_argcomplete dptune
printf '%s\\n' "${COMPREPLY[@]}"
"""


@functools.cache
def completion() -> str:
    """What a user's shell evaluates when it starts."""
    return subprocess.run([BIN / "dptune", "completion", "bash"], capture_output=True, text=True, check=True).stdout


def offered(line: str, folder: Path) -> set[str]:
    """What bash offers at the end of a line."""
    if shutil.which("bash") is None or not (BIN / "dptune").exists():
        pytest.skip("it takes bash, and dptune installed as a command")
    env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "LINE": line, "COMPLETION": completion()}
    done = subprocess.run(["bash", "-c", ASK], capture_output=True, text=True, cwd=folder, env=env, check=True)
    assert done.stderr == ""
    return set(done.stdout.split())


class _EndedError(Exception):
    """In place of the end of the process that answers."""


def _end(status: int) -> None:
    raise _EndedError(status)


def answered(line: str, folder: Path) -> set[str]:
    """What dptune answers bash at the end of a line, asked in this process: bash itself splits words at `=` besides."""
    answer = io.StringIO()
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    ours = functools.partial(argcomplete.autocomplete, exit_method=_end, output_stream=answer)
    with (
        contextlib.chdir(folder),
        mock.patch.dict(os.environ, {**asked, "_ARGCOMPLETE_SUPPRESS_SPACE": "1"}),
        mock.patch.object(argcomplete, "autocomplete", ours),
        mock.patch("argcomplete.finders.os.fdopen", side_effect=OSError),  # a number that is another file here
        pytest.raises(_EndedError, match="0"),
    ):
        main([])
    return {*map(str.strip, answer.getvalue().splitlines())}


def test_verbs(tmp_path: Path) -> None:
    assert offered("dptune ", tmp_path) >= {*VERBS}
    assert offered("dptune re", tmp_path) == {"report"}


def test_options_and_their_choices(tmp_path: Path) -> None:
    assert offered("dptune report --fo", tmp_path) == {"--format"}
    assert answered("dptune report --format ", tmp_path) == {"text", "json", "html", "tui"}
    assert answered("dptune rules ", tmp_path) >= {"list", "explain", "knobs"}


def test_ranks_of_an_export(tmp_path: Path) -> None:
    assert answered("dptune export --ranks ", tmp_path) == {"late", "all"}


def test_clusters_and_ranks_in_detail(tmp_path: Path) -> None:
    assert answered("dptune report --cluster ", tmp_path) == {"local", "slurm", "tcp://"}
    assert answered("dptune check --detail-ranks ", tmp_path) == {"all", "auto"}


def test_names(tmp_path: Path) -> None:
    assert answered("dptune whatif --set ddp.bucket", tmp_path) == {"ddp.bucket_cap_mb=", "ddp.bucket_cap_mb_list="} & {
        f"{name}=" for name in KNOBS
    }
    assert answered("dptune verify --advice DP10", tmp_path) >= {"DP101", "DP102"}
    of_batches = {f"DP30{number}" for number in range(1, 10)}
    assert answered("dptune report --patch --advice DP30", tmp_path) == of_batches
    assert answered("dptune tune --skip DP30", tmp_path) == of_batches
    assert answered("dptune tune --only loader.num", tmp_path) == {"loader.num_workers"}
    assert answered("dptune rules explain DP30", tmp_path) == of_batches
    assert answered("dptune rules explain no-s", tmp_path) == {"no-sync-missing"}


def test_values_of_a_knob(tmp_path: Path) -> None:
    """Bash takes what stands before the `=` for a word of its own."""
    assert offered("dptune whatif --set ddp.no_sync=", tmp_path) == {"true", "false"}
    assert offered("dptune whatif --set ddp.comm_hook=po", tmp_path) == {"powersgd"}
    assert answered("dptune whatif --set env.NO_SUCH=", tmp_path) == set()


def test_formats_and_their_files(tmp_path: Path) -> None:
    (tmp_path / "out.xml").touch()
    assert offered("dptune check --output ", tmp_path) == {f"{form}=" for form in FORMATS}
    assert offered("dptune check --output ju", tmp_path) == {"junit="}
    assert offered("dptune check --output junit=ou", tmp_path) == {"out.xml"}


def test_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "trace.json").touch()
    assert offered("dptune report ", tmp_path) >= {"runs/", "trace.json"}
    assert answered("dptune profile tr", tmp_path) == {"trace.json"}


def test_recordings_and_their_commits(tmp_path: Path) -> None:
    folder = tmp_path / "dptune-runs" / "2026-11-20T10-00-00-train"
    folder.mkdir(parents=True)
    record = '{"schema_version": "0.3", "dptune": "0.1.0", "commit": "0123456789ab"}'
    (folder / "run.json").write_text(record, encoding="utf-8")
    assert answered("dptune check new --baseline 2026", tmp_path) == {folder.name}
    assert answered("dptune check new --baseline 0123", tmp_path) == {"0123456789ab"}
    assert answered("dptune check new --baseline dp", tmp_path) == {"dptune-runs/"}
    for command in ("report", "verify", "tune --run"):
        assert answered(f"dptune {command} 20", tmp_path) == {folder.name}


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_has_its_code(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    printed = capsys.readouterr().out
    assert "dptune" in printed
    assert len(printed.splitlines()) > 5

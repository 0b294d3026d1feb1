"""The command in the test's own process: what it says and its status as from a shell, without starting a Python."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
from pathlib import Path
from unittest import mock

from dptune.cli import main


def dptune(*words: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `dptune` with these words in a folder, with further variables; stdin is empty, no output is a terminal."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(cwd or Path.cwd()),
        mock.patch.dict(os.environ, env),
        mock.patch("sys.stdin", io.StringIO()),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        status = main(words)
    return subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())

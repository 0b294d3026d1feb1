"""The command in the test's own process: what it says and its status as from a shell, without starting a Python."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO
from unittest import mock

from dptune.capture import interpreter, launch, session
from dptune.capture.interpreter import Interpreter
from dptune.capture.launch import Launch, Script
from dptune.capture.torchrun import Torchrun
from dptune.cli import main

from . import forks

_under_torchrun = launch.under_torchrun
_ask = functools.cache(interpreter._ask)  # a Python is started to be asked what it has


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


def recording(
    *words: str, cwd: Path, env: Mapping[str, str], stderr: IO[str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`dptune` with words that start a script: with these variables and no others, and the script's output.

    Several ranks are started by launcher/ in place of torchrun; scripts are forks where that is the same (forks.py).
    Where `stderr` is given, both write their errors there.
    """
    with (
        tempfile.TemporaryFile("w+", errors="backslashreplace") as out,
        contextlib.nullcontext(stderr) if stderr else tempfile.TemporaryFile("w+", errors="backslashreplace") as err,
        contextlib.chdir(cwd),
        mock.patch.dict(os.environ, env, clear=True),
        mock.patch.object(launch, "under_torchrun", _under_launcher),
        mock.patch.object(interpreter, "_ask", _ask),
        mock.patch.object(session.subprocess, "Popen", forks.popen),
        _standing_for(1, "stdout", out),
        _standing_for(2, "stderr", err),
    ):
        status = main(words)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        texts = [_all_of(out), "" if stderr else _all_of(err)]
    return subprocess.CompletedProcess(words, status, *texts)


def forked(
    *words: str,
    streams: Sequence[int],
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    before: Callable[[], object] = lambda: None,
) -> forks.Forked:
    """`dptune` with these words in a fork of this process, which has loaded what it imports.

    It is the first of a session of its own, and has these file descriptors for stdin, stdout and stderr. For tests of
    signals, of terminals, and of what is left where it is killed; it calls `before` first. Unlike a Python that is
    started it does not take its modules apart at its end.
    """
    child = os.fork()
    if child:
        return forks.Forked(child)
    status = 1
    try:
        os.setsid()
        _begin(streams, cwd, env)
        before()
        status = main(words)
        threading._shutdown()  # type: ignore[attr-defined]  # as Python waits at its end for threads that are no daemons
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _begin(streams: Sequence[int], cwd: Path | None, env: Mapping[str, str] | None) -> None:
    """Be in that folder, with that environment and these streams alone."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.chdir(cwd or ".")
    if env is not None:
        os.environ.clear()
        os.environ.update(env)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = open(number, "w" if number else "r", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _under_launcher(script: Script, python: Interpreter, torchrun: Torchrun) -> Launch:
    made = _under_torchrun(script, python, torchrun)
    return replace(made, words=(made.words[0], str(forks.LAUNCHER), *made.words[2:]))


@contextlib.contextmanager
def _standing_for(number: int, name: str, file: IO[str]) -> Iterator[None]:
    """A file as that stream of this process and of those that it starts."""
    before = os.dup(number)
    os.dup2(file.fileno(), number)
    try:
        lines = 1 if name == "stderr" else -1  # as Python's own streams: it writes each line at once
        with open(number, "w", lines, encoding="utf-8", closefd=False) as stream, mock.patch.object(sys, name, stream):
            yield
    finally:
        os.dup2(before, number)
        os.close(before)


def _all_of(file: IO[str]) -> str:
    file.seek(0)
    return file.read()

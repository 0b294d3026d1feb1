"""The dptune commands that a server starts: none outlives it, and only one of them runs a script at a time.

A killed server cannot end its commands: a guard process, which outlives the server, does (`dptune.prove.guard`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from dptune.agents.answers import text
from dptune.prove.guard import guarded

_MARK = "DPTUNE_SERVER"  # environment variable of every command of a server: its process id and start time
_ENDS_WITHIN_S = 60.0  # a search that is interrupted: it ends its trial, and writes what it found


class CallError(Exception):
    """A call that cannot be answered; one sentence, with a hint."""


class Processes:
    """Commands under way. Tools call from several threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal may close while this closes
        self._running: dict[subprocess.Popen[str], str] = {}  # with the name of the search or check that runs a script
        self._closed = False
        self._mark = f"{os.getpid()}-{time.time_ns()}"
        self._guard = contextlib.ExitStack()  # started with the first command

    def output(self, words: Sequence[str], statuses: Sequence[int] = (0,), trials: str = "") -> str:
        """What the command prints, as `start`. Raises CallError with its message where it fails."""
        process = self._start(words, subprocess.PIPE, subprocess.PIPE, trials)
        with process:
            printed, errors = process.communicate()
        if process.returncode not in statuses:
            raise CallError(text(errors.strip()) or f"dptune {words[0]} ended with status {process.returncode}")
        return printed

    def start(self, words: Sequence[str], log: Path, trials: str) -> subprocess.Popen[str]:
        """Start a command whose messages go to a file.

        `trials`: what runs a script, by its name. Raises CallError where another one does: they would disturb each
        other's times.
        """
        with log.open("wb") as messages:
            return self._start(words, subprocess.DEVNULL, messages, trials)

    def close(self) -> None:
        """End what still runs; a search keeps what it found.

        A second call, by a signal, does not wait for the first. It leaves the guard: what still runs when the server
        exits is ended by it.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            running = [process for process in self._running if process.poll() is None]
        for process in running:
            process.send_signal(signal.SIGINT)
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_ENDS_WITHIN_S)
                continue
            process.kill()
        self._guard.close()

    def _start(
        self, words: Sequence[str], output: int, messages: int | IO[bytes], trials: str
    ) -> subprocess.Popen[str]:
        """In a session of its own: a client that ends the server's processes lets it end its trial by itself."""
        with self._lock:
            if self._closed:
                raise CallError("the server is shutting down")
            self._running = {process: name for process, name in self._running.items() if process.poll() is None}
            if trials and (busy := next(filter(None, self._running.values()), "")):
                raise CallError(f"{busy} is running: trials of two calls would disturb each other; wait until it ends")
            if not self._running:
                self._guard.close()
                self._guard.enter_context(guarded([f"{_MARK}={self._mark}"]))
            process = subprocess.Popen(
                [sys.executable, "-m", "dptune", *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=messages,
                text=True,
                env={**os.environ, _MARK: self._mark},
                start_new_session=True,
            )
            self._running[process] = trials
        return process

"""`python SCRIPT` as a fork of a process that has torch loaded: what fork_server/ makes, and when."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from dptune.capture import launch

try:
    import _testinternalcapi
except ImportError:
    _testinternalcapi = None

HERE = Path(__file__).parent
SERVER, LAUNCHER = HERE / "fork_server", HERE / "launcher" / "launch_workers.py"
SITE = Path(launch.__file__).parent / "injected" / "site"
WITHOUT_COMPILER = str(HERE / "without_compiler")
PATHS = (f"{SITE}{os.pathsep}{WITHOUT_COMPILER}", WITHOUT_COMPILER)  # recorded, and not
AT_FIRST = dict(os.environ)
# What Python, torch and the libraries below it read of the environment as they load, by how the names begin.
READ_AT_LOAD = ("PYTHON", "TORCH", "PYTORCH", "KINETO", "OMP_", "MKL_", "ONEDNN_", "DNNL_", "OPENBLAS_", "ATEN_", "LD_")
# Of these, what is looked at elsewhere or later. torch's compiler writes its own cache there, once it has been used.
LATER = {"PYTHONPATH", "KINETO_LOG_LEVEL", "TORCH_EXTENSIONS_DIR", "TORCHINDUCTOR_CACHE_DIR"}
EACH_STARTED = "TESTS_START_EACH"  # a variable with which Python is started for each process, as users start it
HAS_CONFIG = hasattr(_testinternalcapi, "set_config")  # which changes Python's, a module for its own tests
LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
PR_SET_CHILD_SUBREAPER = 36  # source: Linux, prctl(2)
_Popen = subprocess.Popen


class Forked:
    """A forked process, a child of this one: what a recording asks of subprocess.Popen."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its status, where it has ended."""
        return self._ended(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        """Its status, once it has ended."""
        deadline = time.monotonic() + timeout if timeout is not None else None
        while (status := self._ended(0 if deadline is None else os.WNOHANG)) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a forked process", timeout or 0)
            time.sleep(0.005)
        return status

    def send_signal(self, number: int) -> None:
        """Where it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it now."""
        self.send_signal(signal.SIGKILL)

    def _ended(self, how: int) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, how)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode


class Server:
    """The process that is forked; it ends with this one."""

    def __init__(self) -> None:
        self._asks, asked = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with asked:
            own = {"PYTHONPATH": str(SERVER), "KINETO_LOG_LEVEL": "99", "TESTS_FORK_SERVER": str(asked.fileno())}
            self._process = _Popen(
                [sys.executable, "any.py"],
                cwd=SERVER,  # not in the folder of a test that looks what is left there
                env={**AT_FIRST, **own},
                pass_fds=[asked.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        atexit.register(self._end)
        self._one = threading.Lock()

    def _end(self) -> None:
        self._asks.close()
        self._process.wait()

    def fork(
        self, words: Sequence[str], environment: Mapping[str, str], folder: Path | None, streams: Sequence[int]
    ) -> Forked:
        """A process with these words, which start with Python's."""
        request = {
            "words": words[1:],
            "environment": dict(environment),
            "folder": str(Path(folder or ".").absolute()),
            "limits": [(number, resource.getrlimit(number)) for number in LIMITS],
        }
        with self._one, _taking_in():
            socket.send_fds(self._asks, [json.dumps(request).encode()], streams)
            answer = self._asks.recv(99)
        if not answer:
            raise RuntimeError("the process that is forked has ended")
        return Forked(int(answer))


def why_started(words: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Why Python is started with these words; None where a fork is like it: a script, alone or in ranks."""
    python, *rest = words
    if rest[:1] == [str(LAUNCHER)]:
        rest = [word for word in rest[1:] if not word.startswith("--")]
    now, first = _read_at_load(environment), _read_at_load(AT_FIRST)
    differing = sorted(name for name in now.keys() | first.keys() if now.get(name) != first.get(name))
    reasons = {
        f"{EACH_STARTED} is set": EACH_STARTED in environment,
        "not a script of this Python": python != sys.executable or not rest or not rest[0].endswith(".py"),
        "another PYTHONPATH": environment.get("PYTHONPATH") not in PATHS,
        f"read as torch loads: {', '.join(differing)}": bool(differing),
        "only a process of one thread is forked": AT_FIRST.get("OMP_NUM_THREADS") != "1",
        "this Python has no _testinternalcapi.set_config": not HAS_CONFIG,
    }
    return next((reason for reason, is_so in reasons.items() if is_so), None)


def popen(words: Sequence[str], **how: Any) -> Forked | subprocess.Popen[Any]:
    """subprocess.Popen, or a fork where that is the same."""
    usual = {"env", "cwd", "stdin", "stdout", "stderr"}
    if not usual.issuperset(how) or "env" not in how or why_started(words, how["env"]):
        return _Popen(words, **how)
    with contextlib.ExitStack() as opened:
        streams = [_number(how.get(name), at, opened) for at, name in enumerate(("stdin", "stdout", "stderr"))]
        return _server().fork(words, how["env"], how.get("cwd"), streams)


def run(*words: str, cwd: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Python with these words to its end, with what it wrote."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = popen([sys.executable, *words], cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        status = process.wait(900)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read())
    return subprocess.CompletedProcess(words, status, *texts)


@functools.cache
def _server() -> Server:
    return Server()


def _number(stream: IO[Any] | int | None, itself: int, opened: contextlib.ExitStack) -> int:
    if stream == subprocess.DEVNULL:
        stream = os.open(os.devnull, os.O_RDWR)
        opened.callback(os.close, stream)
    return itself if stream is None else stream if isinstance(stream, int) else stream.fileno()


def _read_at_load(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(READ_AT_LOAD) and name not in LATER}


@contextlib.contextmanager
def _taking_in() -> Iterator[None]:
    """What processes below leave becomes this one's child."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

"""Tests in several processes, which are forks of one that has collected them: `pytest --processes 3`.

A pytest plugin. pytest-xdist starts Python in each process, which collects all tests for itself, and passes each report
through three layers; here what is collected is shared. Each process takes the next file (ordering.py) as the last test
of its own begins, so tests of one file never run beside each other.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import selectors
import shutil
import signal
import struct
import sys
import tempfile
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

SHARED = "TESTS_SHARED"  # the folder of what one process has read for the others (reading.py)
LENGTH = struct.Struct("<I")
BEGUN, REPORTED, ENDED = "begun", "reported", "ended"


def add_option(parser: pytest.Parser) -> None:
    """How many processes. A conftest.py calls it: plugins that it registers come too late to add options."""
    parser.addoption("--processes", type=int, default=1, metavar="N", help="run tests in N forks, each file in one")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """In place of pytest's own loop, which also says what could not be collected."""
    count = session.config.getoption("--processes")
    if count < 2 or session.testsfailed or session.config.option.collectonly or not session.items:
        return None
    shared = tempfile.mkdtemp(prefix="dptune-tests-")
    os.environ[SHARED] = shared
    processes = _started(session, count)
    try:
        _report(session, processes)
    finally:
        for process in processes:
            process.end()
        shutil.rmtree(shared, ignore_errors=True)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    return True


@dataclass
class _Process:
    """A fork that runs tests, as its parent sees it."""

    number: int
    pid: int
    sends: int
    running: str = ""
    ended: bool = False
    received: bytes = b""

    def messages(self) -> Iterator[tuple[str, Any]]:
        """What it has sent since; that it is through, or gone, comes last."""
        arrived = os.read(self.sends, 1 << 20)
        if not arrived:
            self.ended = True
        self.received += arrived
        while len(self.received) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self.received)
            whole = LENGTH.size + length
            if len(self.received) < whole:
                break
            content, self.received = self.received[LENGTH.size : whole], self.received[whole:]
            yield pickle.loads(content)

    def end(self) -> None:
        """Stop it, where it still runs."""
        os.close(self.sends)
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            if os.waitpid(self.pid, os.WNOHANG) == (0, 0):
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)


def _started(session: pytest.Session, count: int) -> list[_Process]:
    files = [list(items) for _, items in itertools.groupby(session.items, key=lambda item: item.path)]
    queue, filled = os.pipe()
    os.set_blocking(filled, False)
    assert os.write(filled, b"".join(map(LENGTH.pack, range(len(files))))) == LENGTH.size * len(files)
    os.close(filled)
    processes: list[_Process] = []
    for number in range(min(count, len(files))):
        receives, sends = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if not pid:
            for other in processes:
                os.close(other.sends)
            os.close(receives)
            _Fork(session, number, sends).run(files, queue)
        os.close(sends)
        processes.append(_Process(number, pid, receives))
    os.close(queue)
    return processes


class _Fork:
    """What runs in a fork. It never returns, so that nothing of its parent's is taken down there."""

    def __init__(self, session: pytest.Session, number: int, sends: int) -> None:
        self._session, self._config, self._sends = session, session.config, sends
        plugins = self._config.pluginmanager
        plugins.unregister(name="terminalreporter")
        plugins.register(self, "processes")
        if capture := plugins.getplugin("capturemanager"):  # its files are those of its parent
            capture.stop_global_capturing()
            capture.start_global_capturing()
        folder = self._config._tmp_path_factory.getbasetemp() / f"process-{number}"  # type: ignore[attr-defined]
        folder.mkdir()
        self._config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]

    def run(self, files: list[list[pytest.Item]], queue: int) -> None:
        """Run the tests of files until none is left, then end this process."""
        status = 1
        try:
            items = itertools.chain.from_iterable(_taken(files, queue))
            item = next(items, None)
            while item is not None:
                following = next(items, None)
                self._send(BEGUN, item.nodeid)
                self._config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                item = following
            self._send(ENDED, None)
            status = 0
        except BaseException as error:  # pytest.exit, KeyboardInterrupt: its parent names the test
            with contextlib.suppress(OSError):
                os.write(2, f"process of tests: {error!r}\n".encode())
        finally:
            os._exit(status)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """To the parent, whose plugins take it as their own."""
        self._send(REPORTED, self._config.hook.pytest_report_to_serializable(config=self._config, report=report))

    def _send(self, what: str, content: Any) -> None:
        message = pickle.dumps((what, content), pickle.HIGHEST_PROTOCOL)
        rest = memoryview(LENGTH.pack(len(message)) + message)
        while rest:
            rest = rest[os.write(self._sends, rest) :]


def _taken(files: list[list[pytest.Item]], queue: int) -> Iterator[list[pytest.Item]]:
    while place := os.read(queue, LENGTH.size):
        yield files[LENGTH.unpack(place)[0]]


def _report(session: pytest.Session, processes: list[_Process]) -> None:
    """Give reports of the forks to the plugins here, until all have ended or one failure was enough."""
    hook = session.config.hook
    begun = 0
    with selectors.DefaultSelector() as selector:
        for process in processes:
            selector.register(process.sends, selectors.EVENT_READ, process)
        while selector.get_map():
            for key, _ in selector.select():
                process = key.data
                for what, content in process.messages():
                    if what == REPORTED:
                        report = hook.pytest_report_from_serializable(config=session.config, data=content)
                        _give(session, process, report)
                    begun += what == BEGUN
                    process.running = content if what == BEGUN else "" if what == ENDED else process.running
                if process.ended:
                    selector.unregister(key.fileobj)
                    if process.running:
                        _give(session, process, _broken_off(process.running))
                if session.shouldfail or session.shouldstop:
                    return
    if begun != len(session.items) and not session.testsfailed:
        raise RuntimeError(f"{begun} of {len(session.items)} tests were run")


def _give(session: pytest.Session, process: _Process, report: pytest.TestReport) -> None:
    """With what pytest shows of processes of pytest-xdist."""
    name = f"process {process.number}"
    gateway = types.SimpleNamespace(id=name)
    report.node = types.SimpleNamespace(gateway=gateway, _workerinfocache=f"[{name}]")  # type: ignore[attr-defined]
    session.config.hook.pytest_runtest_logreport(report=report)


def _broken_off(test: str) -> pytest.TestReport:
    path, _, name = test.partition("::")
    message = "the process that ran this test has ended"
    return pytest.TestReport(test, (path, None, name), {}, "failed", message, "call")

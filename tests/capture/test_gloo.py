"""A thread of gloo that still has something to do is waited for, and for no longer than that."""

from __future__ import annotations

import ctypes
import hashlib
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from dptune.capture.injected.leave import gloo
from dptune.capture.injected.leave.gloo import let_gloo_rest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux a process can tell what its threads do")
_SET_NAME = 15  # of prctl


class Busy:
    """A thread with the name that torch gives to gloo's, or another: computes for so long, then rests until told.

    It computes without the interpreter, for which it would wait otherwise, as a thread at rest waits.
    """

    def __init__(self, name: bytes, seconds: float) -> None:
        self.begun, self.rests, self.over = threading.Event(), threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._work, args=(name, seconds), daemon=True)
        self.thread.start()
        self.begun.wait()

    def _work(self, name: bytes, seconds: float) -> None:
        ctypes.CDLL(None).prctl(_SET_NAME, name, 0, 0, 0)
        self.begun.set()
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.over.is_set():
            hashlib.pbkdf2_hmac("sha256", b"password", b"salt", 10_000)
        self.rests.set()
        self.over.wait()


@pytest.fixture
def started() -> Iterator[list[Busy]]:
    threads: list[Busy] = []
    yield threads
    for one in threads:
        one.over.set()
        one.thread.join()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine half a second may be over before a thread has computed for a part of it."""
    monkeypatch.setattr(gloo, "_PATIENCE_S", 300.0)


@pytest.mark.long
@pytest.mark.usefixtures("patient")
def test_it_waits_for_what_runs(started: list[Busy]) -> None:
    started.append(Busy(b"pt_gloo_runloop", 0.2))
    let_gloo_rest()
    assert started[0].rests.is_set()


@pytest.mark.long
@pytest.mark.parametrize("name", [b"pt_gloo_runloop", b"python"])
def test_it_waits_for_half_a_second_at_most_and_for_no_other_threads(started: list[Busy], name: bytes) -> None:
    started.append(Busy(name, 3600))
    let_gloo_rest()
    assert not started[0].rests.is_set()


@pytest.mark.long
@pytest.mark.usefixtures("patient")
def test_the_profiler_is_not_stopped_while_one_runs(started: list[Busy], monkeypatch: pytest.MonkeyPatch) -> None:
    """It would write down the end of a collective into memory that the profiler has let go of."""
    pytest.importorskip("torch", reason="recording needs torch")
    from dptune.capture.injected.record.tracing import Tracing

    tracing = Tracing("light")
    at_rest = []
    monkeypatch.setattr(tracing._profiler, "start_trace", lambda: None)
    monkeypatch.setattr(tracing._profiler, "stop_trace", lambda: at_rest.append(started[0].rests.is_set()))
    started.append(Busy(b"pt_gloo_runloop", 0.2))
    tracing.begin()
    tracing.end()
    assert at_rest == [True]

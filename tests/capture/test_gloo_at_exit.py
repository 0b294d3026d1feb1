"""A thread of gloo that still has something to do when the script ends is waited for, and for no longer than that."""

from __future__ import annotations

import ctypes
import sys
import threading
import time

import pytest

from dptune.capture.injected.exits import let_gloo_rest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux a process can tell what its threads do")
_SET_NAME = 15  # of prctl


def busy(seconds: float, begun: threading.Event) -> None:
    """Compute for so long, under the name that torch gives to gloo's threads; then rest."""
    ctypes.CDLL(None).prctl(_SET_NAME, b"pt_gloo_runloop", 0, 0, 0)
    begun.set()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))
    time.sleep(2)


@pytest.mark.parametrize(("seconds", "at_least", "at_most"), [(0.2, 0.1, 0.45), (1.5, 0.5, 1.0)])
def test_it_waits_for_what_runs_half_a_second_at_most(seconds: float, at_least: float, at_most: float) -> None:
    begun = threading.Event()
    thread = threading.Thread(target=busy, args=(seconds, begun), daemon=True)
    thread.start()
    begun.wait()
    started = time.monotonic()
    let_gloo_rest()
    assert at_least < time.monotonic() - started < at_most
    thread.join()


def test_it_does_not_wait_for_threads_of_other_names() -> None:
    thread = threading.Thread(target=time.sleep, args=(1,), daemon=True)
    thread.start()
    started = time.monotonic()
    let_gloo_rest()
    assert time.monotonic() - started < 0.2
    thread.join()

"""Calls of gc.collect are counted by the line of the script; what Python collects by itself is not."""

from __future__ import annotations

import gc
import inspect

import pytest

from dptune.capture.injected.observe.garbage import Garbage


@pytest.fixture
def garbage(monkeypatch):
    monkeypatch.setattr(gc, "collect", gc.collect)
    monkeypatch.setattr(gc, "callbacks", gc.callbacks)
    gc.freeze()  # a collection is of what this test makes: of all that other tests have loaded it takes a second
    found = Garbage()
    found.install()
    yield found
    gc.callbacks.remove(found._heard)
    gc.unfreeze()


def clean():
    return gc.collect()


def test_calls_by_line(garbage):
    for _ in range(3):
        clean()
    gc.collect(0)
    calls = sorted(garbage.take_calls(), key=lambda call: -call.calls)
    line = inspect.getsourcelines(clean)[1] + 1
    assert [call.calls for call in calls] == [3, 1]
    assert calls[0].where.startswith("clean (")
    assert calls[0].where.endswith(f"test_collect_calls.py:{line})")
    assert calls[0].through == ""
    assert calls[0].spent_ns > 0
    assert garbage.take_calls() == []


def test_what_python_collects_is_no_call(garbage):
    before = gc.get_threshold()
    try:
        gc.set_threshold(10, 1, 1)
        kept = [[] for _ in range(1000)]
    finally:
        gc.set_threshold(*before)
    assert len(kept) == 1000
    assert garbage.take()[0] > 0
    assert garbage.take_calls() == []


def test_the_result_is_that_of_gc(garbage):
    cycle = []
    cycle.append(cycle)
    gc.collect()
    del cycle
    assert gc.collect() >= 1

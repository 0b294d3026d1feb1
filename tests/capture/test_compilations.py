"""Compilations of torch.compile are timed and explained; the compiler itself is played by two small modules here."""

import sys
import time
from types import SimpleNamespace

import pytest

from dptune.capture.injected.observe.compilations import Compilations, recompiles


class Handler:
    def __init__(self):
        self.start_callbacks, self.end_callbacks = [], []
        self.register_start_callback, self.register_end_callback = (
            self.start_callbacks.append,
            self.end_callbacks.append,
        )

    def compile(self, seconds):
        for callback in self.start_callbacks:
            callback("args of this torch")
        time.sleep(seconds)
        for callback in self.end_callbacks:
            callback("args of this torch")


@pytest.fixture
def handler(monkeypatch):
    handler = Handler()
    monkeypatch.setitem(sys.modules, "torch._dynamo.callback", SimpleNamespace(callback_handler=handler))
    return handler


def test_time_between_two_readings(handler):
    compilations = Compilations()
    assert compilations.take() == 0
    handler.compile(0.02)
    handler.compile(0.02)
    assert compilations.take() >= 40_000_000
    assert compilations.take() == 0
    assert len(handler.start_callbacks) == 1


def test_a_reset_of_the_compiler_is_survived(handler):
    compilations = Compilations()
    compilations.take()
    handler.start_callbacks.clear()
    handler.end_callbacks.clear()
    compilations.take()
    handler.compile(0.01)
    assert compilations.take() >= 10_000_000


def test_another_torch_does_not_tell(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch._dynamo.callback", SimpleNamespace())
    assert Compilations().take() is None


def test_the_compiler_is_never_loaded(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch._dynamo.callback", raising=False)
    assert Compilations().take() == 0
    assert "torch._dynamo.callback" not in sys.modules


def test_which_functions_and_why(monkeypatch, tmp_path):
    def compiled(name, file, reason):
        return SimpleNamespace(co_name=name, co_filename=str(file), co_firstlineno=12, recompile_reason=reason)

    users, torchs = tmp_path / "model.py", __import__("torch").__file__
    done = [
        compiled("encode", users, None),
        compiled("encode", users, "size 3"),
        compiled("encode", users, "size 4"),
        compiled("forward", torchs, "x"),
    ]
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", SimpleNamespace(get_compilation_metrics=lambda: done))
    assert [(one.function, one.where, one.reason, one.times) for one in recompiles()] == [
        ("encode", f"{users}:12", "size 4", 2),
        ("forward", None, "x", 1),
    ]
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", SimpleNamespace())
    assert recompiles() == []

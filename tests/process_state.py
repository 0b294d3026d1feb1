"""What the tests of a process share without being given it: each file of tests leaves it as it was.

A pytest plugin. Where a file leaves it changed, its last test fails and names the test that did so; otherwise another
test would fail, in a process in which it happens to run after that file.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

TORCH = (
    *("get_num_threads", "get_default_dtype", "is_grad_enabled", "is_inference_mode_enabled", "is_anomaly_enabled"),
    *("are_deterministic_algorithms_enabled", "get_float32_matmul_precision"),
)
# torch handles this one from the first DataLoader with workers on.
OF_LOADERS = {getattr(signal, "SIGCHLD", None)}
WHILE_A_TEST_RUNS = {"PYTEST_CURRENT_TEST"}  # variables that pytest sets


def state() -> dict[str, object]:
    """The settings of this process that a test may change, by their names."""
    return dict(_settings())


def _settings() -> Iterator[tuple[str, object]]:
    for name, value in os.environ.items():
        if name not in WHILE_A_TEST_RUNS:
            yield f"variable {name}", value
    yield "working directory", str(Path.cwd())
    yield "switch interval in us", round(sys.getswitchinterval() * 1e6)
    yield "recursion limit", sys.getrecursionlimit()
    yield "sys.path", list(sys.path)
    yield "trace function", sys.gettrace()
    yield "collection of garbage", (gc.isenabled(), gc.get_threshold())
    for number in signal.valid_signals() - OF_LOADERS:
        yield f"handler of signal {int(number)}", signal.getsignal(number)
    for thread in threading.enumerate():
        if not thread.daemon:
            yield f"thread {thread.name}", thread.ident
    torch = sys.modules.get("torch")
    for function in TORCH:
        if hasattr(torch, function):
            yield f"torch.{function}()", getattr(torch, function)()
    compiler = sys.modules.get("torch._dynamo")  # without_compiler/ has something else there, of no file
    yield "torch's compiler loaded", getattr(compiler, "__file__", None) is not None


def changes(before: dict[str, object], after: dict[str, object]) -> list[str]:
    """What differs, each with both values; settings of torch count from when it is imported."""
    imported = any(name.startswith("torch.") for name in before)
    return [
        f"{name}: {before.get(name)!r} -> {after.get(name)!r}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name) and (imported or not name.startswith("torch."))
    ]


class _Watch:
    """The state before the file whose tests run, and each change since then with the first test that left it."""

    file: Path | None = None
    before: dict[str, object]
    left: dict[str, str]

    def begin(self, item: pytest.Item) -> None:
        if item.path != self.file:
            self.file, self.before, self.left = item.path, state(), {}

    def end(self, item: pytest.Item, is_last: bool) -> None:
        self.left = {change: self.left.get(change, item.name) for change in changes(self.before, state())}
        if self.left and is_last:
            said = "; ".join(f"{change} (since {test})" for change, test in self.left.items())
            pytest.fail(f"{item.path.name} leaves the process changed: {said}")


_watch = _Watch()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Before the first test of a file."""
    _watch.begin(item)
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """After each test; after the last of a file its fixtures are gone, too."""
    result = yield
    _watch.end(item, nextitem is None or nextitem.path != item.path)
    return result

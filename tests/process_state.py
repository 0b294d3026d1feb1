"""What the tests of a process share without being given it: each file of tests leaves it as it was.

A pytest plugin. After the last test of a file what is changed is put back, so that no test depends on which files ran
before it in its process. Where only quick tests run, the last test fails, too, and names the test that left the change.
What a file leaves behind of objects is left out of later looks at all objects of the process: observers look, and would
look longer each time.
"""

from __future__ import annotations

import _signal
import contextlib
import gc
import operator
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# What returns a setting of torch, and what sets it.
TORCH = {
    "get_num_threads": "set_num_threads",
    "get_default_dtype": "set_default_dtype",
    "is_grad_enabled": "set_grad_enabled",
    "is_anomaly_enabled": "autograd.set_detect_anomaly",
    "are_deterministic_algorithms_enabled": "use_deterministic_algorithms",
    "get_float32_matmul_precision": "set_float32_matmul_precision",
}
# torch handles SIGCHLD from the first DataLoader with workers on. Asked by number: names are looked up for each answer.
SIGNALS = sorted(int(each) for each in signal.valid_signals() if each != getattr(signal, "SIGCHLD", None))
WHILE_A_TEST_RUNS = {"PYTEST_CURRENT_TEST"}  # variables that pytest sets
# torch.profiler loads the compiler, which sets a variable: only the first test of a process with a profiler would fail.
OF_THE_PROFILER = ("torch's compiler loaded: ", "variable TORCHINDUCTOR_CACHE_DIR: ")


def state() -> dict[str, object]:
    """The settings of this process that a test may change, by their names."""
    return dict(_settings())


def _settings() -> Iterator[tuple[str, object]]:
    for name, value in os.environ.items():
        if name not in WHILE_A_TEST_RUNS:
            yield f"variable {name}", value
    with contextlib.suppress(FileNotFoundError):  # it is removed
        yield "working directory", str(Path.cwd())
    yield "switch interval in us", round(sys.getswitchinterval() * 1e6)
    yield "recursion limit", sys.getrecursionlimit()
    yield "sys.path", list(sys.path)
    yield "trace function", sys.gettrace()
    yield "collection of garbage", (gc.isenabled(), gc.get_threshold())
    for number in SIGNALS:
        yield f"handler of signal {number}", _signal.getsignal(number)
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


def restore(before: dict[str, object]) -> None:
    """Put back what can be: threads go on, and torch's compiler stays loaded."""
    after = state()
    for name in {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}:
        kind, _, of = name.partition(" ")
        if kind == "variable":
            os.environ.pop(of, None)
            os.environ.update({of: str(before[name])} if name in before else {})
        elif name.startswith("torch."):
            _restore_in_torch(name.removeprefix("torch.").removesuffix("()"), before.get(name))
        elif name in before:
            _restore_in_python(name, before[name])


def _restore_in_torch(function: str, value: Any) -> None:
    if value is not None:
        operator.attrgetter(TORCH[function])(sys.modules["torch"])(value)


def _restore_in_python(name: str, value: Any) -> None:
    match name:
        case "working directory":
            os.chdir(value)
        case "switch interval in us":
            sys.setswitchinterval((value + 0.5) / 1e6)  # of which it keeps whole microseconds
        case "recursion limit":
            sys.setrecursionlimit(value)
        case "sys.path":
            sys.path[:] = value
        case "trace function":
            sys.settrace(value)
        case "collection of garbage":
            enabled, thresholds = value
            gc.set_threshold(*thresholds)
            (gc.enable if enabled else gc.disable)()
        case _ if name.startswith("handler of signal ") and value is not None:
            signal.signal(int(name.rpartition(" ")[2]), value)


class _Watch:
    """The state before the file whose tests run, and each change since then with the first test that left it."""

    file: Path | None = None
    before: dict[str, object]
    left: dict[str, str]

    def begin(self, item: pytest.Item) -> None:
        if item.path != self.file:
            self.file, self.before, self.left = item.path, state(), {}

    def end(self, item: pytest.Item, is_last: bool) -> None:
        only_quick = item.config.option.markexpr == "quick"
        if not is_last and not only_quick:
            return
        left = [change for change in changes(self.before, state()) if not change.startswith(OF_THE_PROFILER)]
        self.left = {change: self.left.get(change, item.name) for change in left}
        if not is_last:
            return
        gc.collect()  # what is garbage by now would be kept
        gc.freeze()
        restore(self.before)
        if self.left and only_quick:
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

"""A file of tests that changes its process fails by itself, not a test that runs after it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from . import process_state

ROOT = Path(__file__).parents[1]
CHANGES = {
    "variable OF_A_TEST": "os.environ['OF_A_TEST'] = '1'",
    "working directory": "os.chdir('/')",
    "switch interval in us": "sys.setswitchinterval(0.001)",
    "recursion limit": "sys.setrecursionlimit(1234)",
    "sys.path": "sys.path.append('elsewhere')",
    "trace function": "sys.settrace(lambda *_: None)",
    "collection of garbage": "gc.disable()",
    "handler of signal 10": "signal.signal(10, signal.SIG_IGN)",
    "torch.get_num_threads()": "torch.set_num_threads(3)",
    "torch.get_default_dtype()": "torch.set_default_dtype(torch.float64)",
    "torch.is_grad_enabled()": "torch.set_grad_enabled(False)",
    "torch.is_anomaly_enabled()": "torch.autograd.set_detect_anomaly(True)",
    "torch.get_float32_matmul_precision()": "torch.set_float32_matmul_precision('high')",
}
COMPILER = {  # 4 s
    "torch's compiler loaded": "import torch._dynamo.eval_frame; torch._dynamo.reset",
    "torch.are_deterministic_algorithms_enabled()": "torch.use_deterministic_algorithms(True)",  # sets it there, too
}
EACH = """
import gc, json, os, signal, sys, warnings
import torch
from tests import process_state

warnings.simplefilter("ignore")
found = {}
first = before = process_state.state()
for name, change in json.loads(sys.argv[1]).items():
    exec(change)
    found[name] = process_state.changes(before, after := process_state.state())
    before = after
process_state.restore(first)
print(json.dumps([found, process_state.changes(first, process_state.state())]))
"""


def python(*words: str) -> subprocess.CompletedProcess[str]:
    """Python with these words, which finds this package; torch is imported without its compiler."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "tests" / "without_compiler", ROOT)))}
    return subprocess.run([sys.executable, *words], cwd=ROOT, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("changes", "stays"),
    [
        pytest.param(CHANGES, [], id="all but the compiler"),
        pytest.param(
            COMPILER, ["torch's compiler loaded: False -> True"], id="the compiler", marks=pytest.mark.thorough
        ),
    ],
)
def test_each_change_is_named_and_put_back(changes: dict[str, str], stays: list[str]) -> None:
    pytest.importorskip("torch")
    done = python("-c", EACH, json.dumps(changes))
    assert done.returncode == 0, done.stderr
    found, left = json.loads(done.stdout)
    assert found.keys() == changes.keys()
    assert left == stays
    for name, lines in found.items():
        named = [line.partition(": ")[0] for line in lines]
        assert name in named
        # what loads torch's compiler sets variables, and may set more
        assert named == [name] or name == "torch's compiler loaded", lines


def test_a_thread_that_is_left() -> None:
    ended = threading.Event()
    before = process_state.state()
    thread = threading.Thread(target=ended.wait, name="left")
    thread.start()
    assert process_state.changes(before, process_state.state()) == [f"thread left: None -> {thread.ident}"]
    ended.set()
    thread.join()
    assert process_state.changes(before, process_state.state()) == []


def test_torch_may_be_imported() -> None:
    before = {"variable A": "1", "torch's compiler loaded": False}
    after = {**before, "torch.get_num_threads()": 1}
    assert process_state.changes(before, after) == []
    assert process_state.changes(after, {**after, "torch.get_num_threads()": 2}) == ["torch.get_num_threads(): 1 -> 2"]


LEAVES = """
import os, pytest
pytestmark = pytest.mark.quick
class Left: pass
left = []
@pytest.fixture(scope="module")
def given_back(): os.environ["GIVEN_BACK"] = "1"; yield; del os.environ["GIVEN_BACK"]
def test_one(given_back): pass
def test_two(): os.environ["LEFT"] = "1"; left.append(Left())
def test_three(): pass
"""
AFTER = """
import gc, os, pytest
pytestmark = pytest.mark.quick
def test_after(): assert "LEFT" not in os.environ
def test_objects(): assert "Left" not in [type(thing).__name__ for thing in gc.get_objects()]
"""


@pytest.mark.parametrize("only_quick", [True, False])
def test_the_last_test_of_the_file_fails_and_the_next_file_finds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only_quick: bool
) -> None:
    (tmp_path / "test_a.py").write_text(LEAVES)
    (tmp_path / "test_b.py").write_text(AFTER)
    words = ("-q", "-p", "tests.process_state", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(tmp_path))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # those of other packages take two seconds
    done = python("-m", "pytest", *words, *(("-m", "quick") if only_quick else ()), str(tmp_path))
    if only_quick:
        assert "5 passed" in done.stdout
        assert "1 error" in done.stdout
        assert "ERROR at teardown of test_three" in done.stdout
        assert "test_a.py leaves the process changed: variable LEFT: None -> '1' (since test_two)" in done.stdout
    else:
        assert (done.returncode, "5 passed" in done.stdout) == (0, True), done.stdout

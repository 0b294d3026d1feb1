"""The stack of another thread is that of one moment, and reading it does not crash the process."""

import gc
import subprocess
import sys
import threading
import traceback
import weakref

import pytest

from dptune.capture.injected.observe import thread_stack
from dptune.capture.injected.observe.thread_stack import lines_of, stack_of

# Collections in the reading thread let the other one go on, whose functions differ in the size of their frames. Read
# with `frame.f_back`, CPython 3.11 crashes after some ten of these collections.
READS_WHILE_COLLECTING = """
import gc, random, sys, threading, time
from dptune.capture.injected.observe.thread_stack import stack_of

main, collected, functions = threading.get_ident(), [0], []

def collects(phase, info):
    if threading.get_ident() != main:
        collected[0] += 1
        time.sleep(0.0005)

def read():
    while True:
        stack_of(main, 80)
        time.sleep(1e-5)

draw = random.Random(1)
for number in range(60):
    names = [f"a{at}" for at in range(draw.randint(1, 25))]
    lines = [f"def f(n, {', '.join(f'{name}=0' for name in names)}):", *(f"    {name} = [n]" for name in names)]
    lines.append(f"    return (draw.choice(functions)(n - 1) if n else 0) + sum(map(len, [{', '.join(names)}]))")
    exec("\\n".join(lines))
    functions.append(f)
gc.callbacks.append(collects)
gc.set_threshold(10)
sys.setswitchinterval(1e-5)
threading.Thread(target=read, daemon=True).start()
ends = time.monotonic() + 30
while collected[0] < 300 and time.monotonic() < ends:
    functions[0](30)
print(collected[0])
"""


def test_reading_survives_collections_that_let_the_thread_go_on() -> None:
    done = subprocess.run([sys.executable, "-c", READS_WHILE_COLLECTING], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 300


def test_the_lines_are_those_of_a_traceback() -> None:
    expected = [(frame.f_code, line) for frame, line in traceback.walk_stack(sys._getframe())]
    found = lines_of(sys._getframe(), 1000)
    assert found[1:] == expected[1:]
    assert found[0][0] is expected[0][0]
    assert lines_of(sys._getframe(), 3) == [(found[0][0], found[0][1] + 3), *found[1:3]]  # type: ignore[operator]


def test_no_frame_outlives_the_reading() -> None:
    class Tensor:
        pass

    reached, goes_on, ended = threading.Event(), threading.Event(), threading.Event()
    held: list[weakref.ref[Tensor]] = []

    def holds() -> None:
        tensor = Tensor()
        held.append(weakref.ref(tensor))
        reached.set()
        goes_on.wait()

    def run() -> None:
        holds()
        ended.set()

    other = threading.Thread(target=run)
    other.start()
    reached.wait()
    stack = stack_of(other.ident or 0, 80)
    names = [code.co_name for code, _ in stack]
    assert names[names.index("holds") :][:2] == ["holds", "run"]
    goes_on.set()
    ended.wait()
    assert held[0]() is None
    other.join()


def test_a_thread_that_has_ended_has_no_stack() -> None:
    other = threading.Thread(target=int)
    other.start()
    other.join()
    assert stack_of(other.ident or 0, 80) == []


@pytest.mark.parametrize("on", [True, False])
def test_garbage_is_collected_afterwards_as_before(monkeypatch: pytest.MonkeyPatch, on: bool) -> None:
    monkeypatch.setattr(thread_stack, "_COLLECTS_MEANWHILE", True)
    before = gc.isenabled()
    try:
        (gc.enable if on else gc.disable)()
        stack_of(threading.get_ident(), 80)
        assert gc.isenabled() == on
    finally:
        (gc.enable if before else gc.disable)()


def test_without_the_interpreters_lock_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    assert stack_of(threading.get_ident(), 80) == []


UNLOCKED = """
    import sys, torch

    sys._is_gil_enabled = lambda: False
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(20):
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.records
def test_a_recording_says_that_no_stack_was_read(profile) -> None:  # type: ignore[no-untyped-def]
    run = profile(UNLOCKED, "--warmup", "2", "--untraced", "6", "--light", "2", "--detailed", "0")
    assert run.status == 0, run.err
    facts = run.facts()
    assert facts.window("untraced").sampled == []
    assert facts.unread["stacks"] == "Python runs without the global interpreter lock"

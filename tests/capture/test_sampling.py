"""Where a real script's training thread is found while steps are timed, and that looking changes nothing."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import threading
import time
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from dptune.capture.injected.observe.evaluation_source import evaluates_model
from dptune.capture.injected.observe.stack_samples import _AT_ONCE_S, Sampling, _interpreter_at_once
from dptune.capture.injected.observe.thread_stack import lines_of
from dptune.runfile.slow_steps import slow_steps
from dptune.runfile.work_between import work_between

from .conftest import SHORT

SCRIPT = """
    import time, torch

    class Trainer:
        def __init__(self):
            self.model = torch.nn.Linear(8, 8)
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

        def train_step(self):
            self.model(torch.randn(4, 8)).sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad(); time.sleep(0.02)  # as long as it takes to be found here, too, on a busy machine

        def evaluate(self):
            time.sleep(0.3)

        def log_metrics(self):
            time.sleep(0.05)

        def fit(self):
            for step in range(60):
                self.train_step()
                self.log_metrics()
                if step % 3 == 0:
                    self.evaluate()

    Trainer().fit()
"""


@pytest.mark.records
def test_a_trainer_class(profile):
    """Of 12 steps of 50 ms or more, four hold an evaluation of 300 ms more."""
    run = profile(SCRIPT, "--warmup", "2", "--untraced", "12", "--light", "2", "--detailed", "0", "--window-time", "0")
    assert run.status == 0
    facts = run.facts()
    window = facts.window("untraced")
    evaluations = {at for at in range(12) if (window.first_step + at - 2) % 3 == 0}
    window.durations_ns = [350_000_000 if at in evaluations else 50_000_000 for at in range(12)]  # nominal
    (cause,) = [one for one in slow_steps([facts]) if one.name.endswith("evaluate")]
    assert (cause.where, set(cause.steps), cause.periods) == ("train.py:25", evaluations, (3,))
    assert cause.extra_ns > 200e6
    (work,) = [one for one in work_between([facts]) if one.name.endswith("log_metrics")]
    assert (work.where, work.kind, work.hottest.endswith("(train.py:18)")) == ("train.py:23", "logging", True)
    for place in window.sampled:
        assert len(place.steps) == len(place.spent_ns)
        assert all(0 <= at < window.steps for at in place.steps)
    assert facts.window("light").sampled == []


@pytest.mark.parametrize("alone", [True, False])
def test_a_look_asks_for_the_interpreter_at_once_and_leaves_it_as_it_was(monkeypatch, alone):
    usual_s = sys.getswitchinterval()
    sampling = Sampling()
    monkeypatch.setattr(sampling, "_alone", lambda: alone)
    sampling.begin()
    while sys.getswitchinterval() > _AT_ONCE_S * 1.01:
        sum(range(20))
    sampling.end_step()
    sampling.end()
    sampling._sampler.join()
    assert sys.getswitchinterval() == pytest.approx(usual_s)


@pytest.mark.alone
def test_python_between_operators_is_found_and_not_the_operator_behind_it():
    """Of 2 ms, nearly all is Python: a thread that waits for the interpreter would get it in the operator behind."""
    found: Counter[str] = Counter()
    for _ in range(3):
        sampling = Sampling()
        sampling.begin()
        began = time.perf_counter()
        while time.perf_counter() - began < 2:
            total = _python_of_2_ms()
            torch.rand(3, 32, 32).flip(2)
            sampling.end_step()
        for sample in sampling.end():
            found["Python" if sample.path[-1].startswith("_python_of_2_ms") else "operator"] += sample.looks
        # On a quiet machine half as often as the operator; without the short switches once in 258.
        if found["Python"] > found["operator"] / 30:
            break
    assert total > 0
    assert found["Python"] > found["operator"] / 30


def test_what_the_line_does_is_recorded():
    sampling = Sampling()
    sampling.begin()
    numbers = list(range(200_000))
    while not any("_sorts" in sample.path[-1] for sample in _so_far(sampling)):
        _sorts(numbers)
    sampling.end_step()
    found = {(sample.form, sample.path[sample.form_at].partition(" ")[0]) for sample in sampling.end() if sample.form}
    assert found == {("sorting", "_sorts")}


def test_a_function_that_reads_values_to_write_them_logs():
    sampling = Sampling()
    sampling.begin()
    numbers, written = [FLOAT] * 300, []
    while not any("_describes" in sample.path[-1] for sample in _so_far(sampling)):
        _describes(numbers, io.StringIO())
        _sums(numbers, written)
    sampling.end_step()
    kinds = {(sample.path[-1].partition(" ")[0], sample.kind) for sample in sampling.end() if sample.path}
    assert ("_describes", "logging") in kinds
    assert not any(kind for name, kind in kinds if name == "_sums")


FLOAT = np.float32(0.5)


def _describes(numbers, file):
    for number in numbers:
        file.write(f"{number.item()}")


def _sums(numbers, kept):
    kept[:] = [sum(number.item() for number in numbers)]


def _so_far(sampling):
    return [sampling._facts(key, {}, 1.0) for key in list(sampling._found) if key[0]]


def _sorts(numbers):
    return sorted(numbers)


def _python_of_2_ms():
    began, total = time.perf_counter(), 0
    while time.perf_counter() - began < 0.002:
        total += sum(range(20))
    return total


@pytest.mark.thorough
@pytest.mark.records
def test_a_script_whose_training_thread_ends_is_looked_at_no_more(profile):
    """It trains in a thread of its own, which ends inside the window."""
    run = profile(
        """
        import threading, torch
        def train():
            model = torch.nn.Linear(8, 8)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(5):
                model(torch.randn(4, 8)).sum().backward()
                optimizer.step()
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
        """,
        *SHORT,
    )
    assert run.status == 0
    assert run.facts().window("untraced").steps <= 3


TRAINER = """
class Trainer:
    def train(self, inner):
        self._inner_training_loop(inner)
    def _inner_training_loop(self, inner):
        self._maybe_log_save_evaluate(inner)
    def _maybe_log_save_evaluate(self, inner):
        self._evaluate(inner)
    def _evaluate(self, inner):
        self.evaluate(inner)
    def evaluate(self, inner):
        self.evaluation_loop(inner)
    def evaluation_loop(self, inner):
        inner()
"""


def at_a_look(trainer: str) -> tuple[list[str], str, str]:
    """What a look finds in a function of the script that a library's Trainer calls."""
    library: dict[str, type] = {}
    exec(compile(trainer, "/venv/lib/python3/site-packages/transformers/trainer.py", "exec"), library)
    found = []

    def compute_metrics() -> None:
        found.append(Sampling()._key(lines_of(sys._getframe(), 80)))

    def main() -> None:
        library["Trainer"]().train(compute_metrics)

    main()
    ((path, _, through, kind),) = found
    names = [code.co_name for code, _ in path]
    return names[names.index("main") :], through, kind


@pytest.mark.skipif(sys.version_info < (3, 11), reason="older code has no qualified name")
def test_what_a_library_calls_to_evaluate_is_its_evaluation():
    """The function is the outermost public one that evaluates; the script's line is that which calls the library."""
    assert at_a_look(TRAINER) == (["main"], "transformers.Trainer.evaluate", "evaluation")


def test_a_library_that_calls_the_script_to_train_does_not_evaluate():
    trains = TRAINER.replace("self._evaluate(inner)", "inner()")
    assert at_a_look(trains)[0] == ["main", "compute_metrics"]
    assert at_a_look(trains)[2] == ""


CLOSURE = """
def wrap(then):
    def closure():
        then()
    return closure
"""


def test_what_a_librarys_closure_runs_in_an_optimizers_step_is_not_the_optimizers():
    library: dict[str, Any] = {}
    exec(compile(CLOSURE, "/venv/lib/python3/site-packages/lightning/pytorch/precision.py", "exec"), library)
    model, found = torch.nn.Linear(2, 1), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def look(*_):
        found.append(Sampling()._key(lines_of(sys._getframe(), 80))[1])

    def before_step():
        look()
        hook = model.register_forward_hook(look)
        model(torch.ones(1, 2))
        hook.remove()

    optimizer.step(library["wrap"](before_step))
    optimizer.register_step_post_hook(look)
    optimizer.step()
    assert found == ["", "forward", "optimizer"]


@pytest.mark.skipif(not hasattr(logging, "_releaseLock"), reason="from Python 3.13 on, no function of Python")
def test_the_lock_that_a_fork_releases_is_no_logging(monkeypatch):
    """`os.fork` acquires the lock of logging before and releases it after: what a sample in a fork finds."""
    found = []

    class Lock:
        def acquire(self):
            pass

        def release(self):
            found.append(Sampling()._key(lines_of(sys._getframe(1), 80))[2:])

    monkeypatch.setattr(logging, "_lock", Lock())
    logging._releaseLock()
    monkeypatch.undo()
    assert found == [("_releaseLock", "")]


def test_it_switches_at_once_only_beside_threads_that_sleep():
    """A thread of the script would be switched more often than it is used to."""
    sampling, ended = Sampling(), threading.Event()
    assert sampling._alone()
    for name, alone in (("dptune-live", True), ("Thread-1", False)):
        thread = threading.Thread(target=ended.wait, name=name)
        ended.clear()
        thread.start()
        assert sampling._alone() is alone
        ended.set()
        thread.join()
    assert sampling._alone()


def test_times_of_places_make_up_the_time_that_was_sampled():
    """Of 80 ms a look that counts for 10 ms and one that counts for 30, in steps 0 and 1: 20 and 60."""
    sampling = Sampling()
    key = ((), "backward", "", "")
    for step, weight_ns in ((0, 10e6), (1, 30e6), (2, 0.0)):
        sampling._count(key, step, weight_ns)
    sampling._step, sampling._last_ns = 2, sampling._begun_ns + 80_000_000  # step 2 has not ended
    (found,) = sampling.end()
    assert (found.steps, found.spent_ns, found.looks) == ([0, 1], [20_000_000, 60_000_000], 3)


@pytest.mark.parametrize("usual_s", [0.005, 0.0001, 0.00012, 0.000123])
def test_the_interval_is_as_before_however_often_calls_are_nested(usual_s):
    """CPython keeps whole microseconds and cuts the rest: what it returns, set again, would be 1 us less."""
    before_s = sys.getswitchinterval()
    try:
        sys.setswitchinterval(usual_s + 0.5e-6)
        for _ in range(3):
            with _interpreter_at_once(), _interpreter_at_once(), _interpreter_at_once():
                assert sys.getswitchinterval() == pytest.approx(_AT_ONCE_S)
        assert sys.getswitchinterval() == pytest.approx(usual_s)
    finally:
        sys.setswitchinterval(before_s + 0.5e-6)


@pytest.mark.parametrize("alone", [True, False])
def test_an_interval_that_the_script_sets_meanwhile_stays(alone):
    usual_s = sys.getswitchinterval()
    try:
        with _interpreter_at_once(), contextlib.nullcontext() if alone else _interpreter_at_once():
            sys.setswitchinterval(0.02)
        assert sys.getswitchinterval() == pytest.approx(0.02)
    finally:
        sys.setswitchinterval(usual_s)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
def test_a_process_that_is_forked_meanwhile_switches_as_before():
    usual_s = sys.getswitchinterval()
    with _interpreter_at_once(), _interpreter_at_once():
        child = os.fork()
        if not child:
            os._exit(abs(sys.getswitchinterval() - usual_s) > usual_s / 100)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


EVALUATING = """
import torch

@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    for rows in loader:
        model(rows)

def validate(model, loader):
    with torch.inference_mode():
        for rows in loader:
            model(rows)

@torch.no_grad()
def evaluate_targets(model, rows):
    return model(rows)

def evaluate_actions(model, rows):
    return model(rows)

def train_and_evaluate(model, loader):
    for rows in loader:
        model(rows).sum().backward()
    with torch.no_grad():
        model.eval()

@torch.no_grad()
def targets(model, rows):
    model.eval()
"""


def test_which_functions_evaluate(tmp_path):
    """By their source: those whose result a step needs have neither `.eval()` nor a loop."""
    file, names = tmp_path / "train.py", {}
    file.write_text(EVALUATING)
    exec(compile(EVALUATING, str(file), "exec"), names)
    functions = {name: getattr(each, "__wrapped__", each) for name, each in names.items() if callable(each)}
    found = {name for name, each in functions.items() if evaluates_model(each.__code__)}
    assert found == {"evaluate", "validate"}

"""Samples the stack of the training thread while steps are timed without the profiler.

A thread of its own wakes 10 to 100 times a second, reads the stack of the training thread, and goes back to sleep: 12
microseconds per sample for a stack of 30 frames. The intervals vary, so that samples cannot lock onto the period of the
steps. Each sample has the same weight: the mean interval. A sample that is late by more than that also gets its delay,
up to the CPU time of this process since the last sample: the sampled line held the interpreter, as a long NumPy call
does. Weights are then scaled to sum to the sampled time.

A thread that wakes waits up to 5 ms for the interpreter (sys.getswitchinterval), unless the training thread releases it
earlier: at its next torch operator, whatever Python ran before. So samples would miss Python code. If the script runs
no other Python thread, the switch interval is 0.1 ms all the time. Other threads would then switch more often than
without dptune, so with them it is 0.1 ms only during a second sleep of 0.5 to 5.5 ms before each sample. With 5 ms, no
sample found functions that run 2.5 ms of Python between operators. Of 10 ms of Python in a step of 12 ms, 93 to 100 %
was found with 0.1 ms all the time (four runs on a loaded machine), 84 % with 0.1 ms in the second sleep only.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from types import CodeType

from dptune.capture.injected.observe.evaluation_source import evaluates_model
from dptune.capture.injected.observe.line_forms import form_of, loops_of
from dptune.capture.injected.observe.places import OURS, TORCHS, is_the_users, package, relative
from dptune.capture.injected.observe.reporting_source import writes_values
from dptune.capture.injected.observe.thread_stack import Line, stack_of
from dptune.runfile.window import SampledFacts
from dptune.runfile.work_kinds import evaluates, waits

_SHORTEST_S, _LONGEST_S = 0.01, 0.1
_A_STEP = 10  # samples in the shortest step, if it is long enough
_GOLDEN, _PLASTIC = 0.6180339887498949, 0.7548776662466927  # multiples of each, modulo 1, spread evenly
_AT_ONCE_S, _AFTER_S, _WITHIN_S = 0.0001, 0.0005, 0.005
_MOST, _DEEPEST = 300, 80  # places that are distinguished; frames of a stack that are read
_PHASES = (
    (("utils/data/",), "loader"),
    (("autograd/",), "backward"),
    (("optim/", "amp/grad_scaler.py"), "optimizer"),
    (("nn/modules/module.py", "nn/parallel/"), "forward"),
    (("distributed/distributed_c10d.py", "distributed/_functional_collectives.py"), "collective"),
)
_OF_TORCH = ("backward", "optimizer", "collective")  # phases in which the line of the script only waits for torch
_KINDS = {
    "saving": ("torch/serialization.py", "torch/distributed/checkpoint/", "safetensors/", "/pickle.py", "joblib/"),
    "plotting": ("matplotlib/", "seaborn/", "plotly/", "PIL/Image.py"),
    "logging": (
        *("torch/utils/tensorboard/", "tensorboardX/", "tensorboard/", "wandb/", "mlflow/", "neptune/", "comet_ml/"),
        *("aim/sdk/", "clearml/", "/logging/__init__.py", "/csv.py", "/json/__init__.py", "loguru/", "tqdm/"),
    ),
    "metrics": ("sklearn/metrics/", "torchmetrics/", "evaluate/", "torcheval/"),
}
# Libraries that hold the training loop, and call evaluation from it.
_TRAINERS = {
    *("transformers", "lightning", "pytorch_lightning", "accelerate", "trl", "sentence_transformers", "setfit"),
    *("ignite", "mmengine", "ultralytics", "fastai", "composer", "torchtune", "detectron2", "catalyst", "skorch"),
}
_HALF_A_MICROSECOND_S = (
    0.5e-6  # CPython cuts a switch interval to whole microseconds: 0.0001 would come back as 0.000099
)
_changed: list[float] = []  # the script's switch interval, while another one is in force
Key = tuple[tuple[tuple[CodeType, int], ...], str, str, str]


class Sampling:
    """Where one thread was, by step of the window; begun and ended in that thread."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._step = 0
        self._begun_ns = self._step_begun_ns = time.perf_counter_ns()
        self._shortest_ns: int | None = None  # step
        self._ended = threading.Event()
        self._sampler = threading.Thread(target=self._run, name="dptune-sampling", daemon=True)
        self._found: dict[Key, dict[int, float]] = {}
        self._weighted_ns, self._last_ns, self._computed_ns = 0.0, self._begun_ns, time.process_time_ns()
        self._looks: dict[Key, int] = {}
        self._of_code: dict[CodeType, tuple[str, str, str]] = {}
        self._evaluating: dict[CodeType, bool] = {}
        self._writing: dict[CodeType, bool] = {}

    def begin(self) -> None:
        """Start to look."""
        self._sampler.start()

    def end_step(self) -> None:
        """A step has ended, and the next begins."""
        now_ns = time.perf_counter_ns()
        lasted_ns = now_ns - self._step_begun_ns
        self._shortest_ns = min(self._shortest_ns or lasted_ns, lasted_ns)
        self._step_begun_ns = now_ns
        self._step += 1

    def end(self) -> list[SampledFacts]:
        """Stop, and what was found in whole steps, most first."""
        self._ended.set()
        if self._sampler.is_alive():
            self._sampler.join(_LONGEST_S)  # so that the interpreter is switched as before
        scale = (self._last_ns - self._begun_ns) / self._weighted_ns if self._weighted_ns else 0.0
        found = [self._facts(key, dict(spent), scale) for key, spent in list(self._found.items())]
        return sorted((sample for sample in found if sample.steps), key=lambda one: -sum(one.spent_ns))

    def _facts(self, key: Key, spent: dict[int, float], scale: float) -> SampledFacts:
        path, phase, through, kind = key
        whole = {step: round(ns * scale) for step, ns in sorted(spent.items()) if step < self._step}
        if not kind and not phase and path:
            code, line = path[-1]
            if "print(" in linecache.getline(code.co_filename, line):
                kind = "logging"
        if not kind and any(self._evaluates(code) for code, _ in path):
            kind = "evaluation"
        if not kind and not phase and any(self._writes(code) for code, _ in path):
            kind = "logging"
        form, form_at = ("", 0) if phase in _OF_TORCH else form_of(path)
        return SampledFacts(
            path=[f"{_name(code)} ({relative(code.co_filename)}:{line})" for code, line in path],
            phase=phase,
            through=through,
            kind=kind,
            looks=self._looks.get(key, 0),
            steps=list(whole),
            spent_ns=list(whole.values()),
            form=form,
            form_at=form_at,
            loops=loops_of(path),
            firsts=[code.co_firstlineno for code, _ in path],
        )

    def _evaluates(self, code: CodeType) -> bool:
        """Whether it is a function of the script that evaluates, and was not found training."""
        if code not in self._evaluating:
            self._evaluating[code] = False
            with contextlib.suppress(Exception):  # a script may be of any form
                trained = any(
                    phase in ("backward", "optimizer") and code in dict(path) for path, phase, *_ in list(self._found)
                )
                self._evaluating[code] = not trained and evaluates_model(code)
        return self._evaluating[code]

    def _writes(self, code: CodeType) -> bool:
        """Whether it is a function of the script that writes values of tensors, and was found in no phase."""
        if code not in self._writing:
            in_phases = any(phase and code in dict(path) for path, phase, *_ in list(self._found))
            self._writing[code] = False
            with contextlib.suppress(Exception):  # a script may be of any form
                self._writing[code] = not in_phases and writes_values(code)
        return self._writing[code]

    def _run(self) -> None:
        looks = 0
        while True:
            with _interpreter_at_once() if self._alone() else contextlib.nullcontext():
                if not self._look(looks):
                    return
            looks += 1

    def _look(self, looks: int) -> bool:
        """Sleep, then take one sample; False once there is nothing left to sample."""
        usual_s, idle_s, asleep_s = self._times_s(looks)
        if self._ended.wait(idle_s):
            return False
        with contextlib.suppress(Exception), _interpreter_at_once():
            time.sleep(asleep_s)
            stack = stack_of(self._thread, _DEEPEST)
            step, now_ns = self._step, time.perf_counter_ns()
            if not stack:
                return False
            key = self._key(stack)
            late_ns, computed_ns = now_ns - self._last_ns - (idle_s + asleep_s) * 1e9, time.process_time_ns()
            held_ns = min(late_ns, computed_ns - self._computed_ns) if late_ns > usual_s * 1e9 else 0.0
            self._count(key, step, usual_s * 1e9 + held_ns)
            self._last_ns, self._computed_ns = now_ns, computed_ns
        return True

    def _alone(self) -> bool:
        """Whether only the training thread runs Python: dptune's threads and a progress bar's sleep nearly always."""
        return all(
            thread.ident == self._thread
            or thread.name.startswith("dptune-")
            or type(thread).__module__.startswith("tqdm")
            for thread in threading.enumerate()
        )

    def _times_s(self, looks: int) -> tuple[float, float, float]:
        """The mean interval between samples, and the two sleeps before this one."""
        usual_s = min(max((self._shortest_ns or 0) / 1e9 / _A_STEP, _SHORTEST_S), _LONGEST_S)
        idle_s = usual_s * (0.5 + looks * _GOLDEN % 1) - _AFTER_S - _WITHIN_S / 2
        return usual_s, max(0.0, idle_s), _AFTER_S + _WITHIN_S * (looks * _PLASTIC % 1)

    def _count(self, key: Key, step: int, weight_ns: float) -> None:
        self._weighted_ns += weight_ns
        if key in self._found or len(self._found) < _MOST:
            steps = self._found.setdefault(key, {})
            steps[step] = steps.get(step, 0.0) + weight_ns
            self._looks[key] = self._looks.get(key, 0) + 1

    def _key(self, stack: Sequence[Line]) -> Key:
        """The script's lines from the outermost on, and what of torch or another library it is in.

        What a library calls to evaluate counts for the library's function, with all that it calls.
        """
        path: list[tuple[CodeType, int]] = []
        phase = through = kind = by = ""
        trained = False
        for code, line in stack:
            owner, its_phase, its_kind = self._of_code.get(code) or self._classified(code)
            if owner == "user":
                path.append((code, line or 0))
            elif owner != "ours":
                trained = trained or owner in _TRAINERS
                if its_phase != "optimizer" or not trained:  # else it runs a closure of the library
                    phase = its_phase or phase  # the outermost one counts
                kind = kind or its_kind
                name = f"{owner}.{_name(code)}" if owner else _name(code)
                if its_kind == "evaluation":
                    path.clear()
                    by = by if kind == its_kind and _is_private(name) else name
                    kind = its_kind
                elif kind and its_kind == kind:
                    by = name  # the outermost function of that kind
                through = through if path else name
        path.reverse()
        return tuple(path), phase, by or through, kind

    def _classified(self, code: CodeType) -> tuple[str, str, str]:
        file = code.co_filename.replace("\\", "/")
        if file.startswith(OURS):
            found = "ours", "", ""
        elif is_the_users(code.co_filename):
            found = "user", "", ""
        else:
            inside = file.removeprefix(TORCHS) if file.startswith(TORCHS) else ""
            phase = next((phase for files, phase in _PHASES if inside and inside.startswith(files)), "")
            kind = next((kind for kind, parts in _KINDS.items() if any(part in file for part in parts)), "")
            owner = package(code)
            if not owner and waits(_name(code)):
                kind = ""
            if owner in _TRAINERS and evaluates(_name(code)):
                kind = "evaluation"
            found = owner, phase, kind
        self._of_code[code] = found
        return found


@contextlib.contextmanager
def _interpreter_at_once() -> Iterator[None]:
    """A thread that waits for the interpreter gets it within 0.1 ms, not only when another thread releases it."""
    if _changed:  # the outer call sets it, and sets it back
        yield
        return
    usual_s = sys.getswitchinterval()
    _changed.append(usual_s)
    sys.setswitchinterval(_AT_ONCE_S)
    try:
        yield
    finally:
        _changed.clear()
        if _is_at_once():  # else the script has set another one meanwhile
            sys.setswitchinterval(usual_s + _HALF_A_MICROSECOND_S)


def _is_at_once() -> bool:
    return abs(sys.getswitchinterval() - _AT_ONCE_S) < _AT_ONCE_S / 100


def _in_a_fork() -> None:
    """A process that the script forks meanwhile has no sampler that would set the interval as it was."""
    if _changed and _is_at_once():
        sys.setswitchinterval(_changed[0] + _HALF_A_MICROSECOND_S)
    _changed.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_a_fork)


def _name(code: CodeType) -> str:
    return str(getattr(code, "co_qualname", code.co_name)).replace(".<locals>", "")  # from Python 3.11 on


def _is_private(name: str) -> bool:
    return name.rpartition(".")[2].startswith("_")

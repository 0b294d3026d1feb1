"""Watches which random numbers the lines of the script draw in warm-up steps, where there are several ranks.

Only tensors with a value for each sample of a batch, which ranks should draw differently. What prepares batches is left
out, and noise of parameters and gradients, which all ranks must draw alike. A few values of each tensor are kept on its
device, and read when the first window opens.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from types import FrameType
from typing import Any

import torch
from torch.optim import Optimizer

from dptune.capture.injected.observe import process_rank
from dptune.capture.injected.observe.meters import samples_in
from dptune.capture.injected.observe.passes import is_captured, is_in_pass
from dptune.capture.injected.observe.places import Places, caller, is_the_users, users_line
from dptune.capture.injected.observe.tensor_samples import elements, is_readable
from dptune.capture.injected.observe.wrapped_operators import WrappedOperators
from dptune.runfile.step_draws import StepDrawFacts

_LINES = 32
_CALLS = 16  # of a line
_FRAMES = 40
_LEAST_ROWS = 2
_FUNCTIONS = ("randn", "rand", "randint", "randn_like", "rand_like", "randint_like", "bernoulli", "normal")
_METHODS = ("normal_", "uniform_", "bernoulli_", "random_", "exponential_")
_FETCH = "fetch.py"  # of torch's loaders


class StepDraws:
    """The first calls of each line."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._operators = WrappedOperators(self._note)
        self._process = os.getpid()  # workers that are forked from it inherit the wrapped functions
        self._rows = 0  # of the batch that was drawn last
        self._lines: dict[tuple[str, str], tuple[StepDrawFacts, list[torch.Tensor]]] = {}
        self._facts: list[StepDrawFacts] = []

    def begin(self) -> None:
        """Watch from now on, but no code that torch.compile reads."""
        if process_rank.world_size() < 2 or self._places.compiled:
            return
        for name in _FUNCTIONS:
            self._operators.wrap(torch, name)
        for name in _METHODS:
            self._operators.wrap(torch.Tensor, name)

    def drawn(self, batch: Any) -> None:
        """A loader has returned this batch."""
        self._rows = samples_in(batch)

    def end(self) -> None:
        """Watch no more, and read the values."""
        self._operators.unwrap()
        for facts, values in self._lines.values():
            with contextlib.suppress(Exception):
                facts.values = [_digest(each) for each in values]
                self._facts.append(facts)
        self._lines = {}

    def facts(self) -> list[StepDrawFacts]:
        """The facts of each line, in the order of their first calls."""
        return self._facts

    def _note(self, operator: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if os.getpid() != self._process:
            return
        frame = caller(sys._getframe(2))
        if frame is None or not is_the_users(frame.f_code.co_filename):
            return
        if torch.compiler.is_compiling() or is_captured() or is_in_pass():
            return
        if type(result) is not torch.Tensor or not result.dim() or not is_readable(result):
            return
        rows = result.shape[0]
        if rows < _LEAST_ROWS or (self._rows and rows != self._rows) or not torch.is_grad_enabled() or _prepares(frame):
            return
        where = users_line(frame)
        if self._is_of_parameter(result, *args[:1]):
            return
        if where is None or ((where, operator) not in self._lines and len(self._lines) >= _LINES):
            return
        new = StepDrawFacts(where, operator, list(result.shape), of_batch=bool(self._rows))
        _, values = self._lines.setdefault((where, operator), (new, []))
        if len(values) < _CALLS:
            values.append(elements(result))

    def _is_of_parameter(self, *tensors: Any) -> bool:
        """Whether one of these shares its memory with a parameter that an optimizer updates, or with its gradient."""
        groups = [group for optimizer in self._places.alive(Optimizer) for group in optimizer.param_groups]
        held = {
            _memory(each) for group in groups for parameter in group["params"] for each in (parameter, parameter.grad)
        }
        found = {_memory(each) for each in tensors if isinstance(each, torch.Tensor)}
        return not found.isdisjoint(held - {None})


def _memory(tensor: Any) -> int | None:
    """Where it begins; None for no tensor."""
    if tensor is None or not is_readable(tensor) or tensor.layout != torch.strided:
        return None
    return int(getattr(tensor, "_local_tensor", tensor).data_ptr())


def _prepares(frame: FrameType | None) -> bool:
    """Whether it is called to prepare a batch."""
    for _ in range(_FRAMES):
        if frame is None:
            return False
        if frame.f_code.co_filename.endswith(_FETCH) and not is_the_users(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


def _digest(values: torch.Tensor) -> str:
    return hashlib.blake2b(repr(values.tolist()).encode(), digest_size=8).hexdigest()

"""Finds optimizers that are created anew for nearly every step, so that their state is lost each time.

In warm-up steps, by the line that creates them: each is another object without state, with the parameters of the one
before. Those of copies of a model, as in an inner loop of meta-learning, have other parameters.
"""

from __future__ import annotations

import contextlib
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dptune.capture.injected.observe.places import Places
from dptune.runfile.unrestored_states import UnrestoredStateFacts

_STATE = ("betas", "momentum", "alpha", "rho", "lr_decay")  # options of optimizers that keep a state
_LEAST = 3  # optimizers
_LINES = 8  # that are looked at


@dataclass
class _Line:
    optimizer: weakref.ref[Any]
    parameter: weakref.ref[Any]
    parameters: int
    created: int = 1
    steps: int = 1


class RenewedOptimizers:
    """By line of the script, the optimizers that were created there and stepped."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._lines: dict[tuple[str, str], _Line] = {}
        self._handle: Any = None

    def begin(self) -> None:
        """Watch the steps from now on."""
        self._handle = register_optimizer_step_pre_hook(self._begins)

    def end(self) -> None:
        """Watch no more."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def facts(self) -> list[UnrestoredStateFacts]:
        """The lines that create an optimizer for every step or two."""
        return [
            UnrestoredStateFacts(kind, where, None, "", "", line.parameters, renewed=line.created)
            for (kind, where), line in self._lines.items()
            if line.created >= _LEAST and line.steps <= 2 * line.created
        ]

    def _begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        with contextlib.suppress(Exception):  # optimizers may be anything
            self._note(optimizer)

    def _note(self, optimizer: Any) -> None:
        where = self._places.line(optimizer)
        group = optimizer.param_groups[0]
        if where is None or not any(group.get(option) for option in _STATE):
            return
        parameters = [parameter for each in optimizer.param_groups for parameter in each["params"]]
        key, line = (type(optimizer).__name__, where), self._lines.get((type(optimizer).__name__, where))
        if line is not None and line.optimizer() is optimizer:
            line.steps += 1
        elif line is not None and line.parameter() is parameters[0] and not any(optimizer.state.values()):
            line.optimizer = weakref.ref(optimizer)
            line.created, line.steps = line.created + 1, line.steps + 1
        elif line is not None or len(self._lines) < _LINES:
            self._lines[key] = _Line(weakref.ref(optimizer), weakref.ref(parameters[0]), len(parameters))

"""Where gradients are clipped while they are still multiplied by the scale of a GradScaler."""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from types import GeneratorType
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler, OptState
from torch.optim import Optimizer

from dptune.capture.injected.observe.places import Places, users_line
from dptune.runfile.loss_scaling import ScaledClippingFacts

_FUNCTIONS = ("clip_grad_norm_", "clip_grad_value_")
_LINES = 8  # that are distinguished


class ScaledClipping:
    """Counts such calls by line, of optimizers that step through the scaler."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._found: dict[str, tuple[weakref.ref[Any], ScaledClippingFacts]] = {}
        self._stepped: list[weakref.ref[Any]] = []  # optimizers that a scaler steps

    def install(self) -> None:
        """Wrap torch's functions that clip, and the scaler's step."""
        for name in _FUNCTIONS:
            self._watch(name)
        step = GradScaler.step

        @functools.wraps(step)
        def stepped(this: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not any(known() is optimizer for known in self._stepped):
                self._stepped = [*(known for known in self._stepped if known() is not None), weakref.ref(optimizer)]
            return step(this, optimizer, *args, **kwargs)

        GradScaler.step = stepped  # type: ignore[method-assign, assignment]

    def facts(self) -> ScaledClippingFacts | None:
        """The line that does so most often; None without one."""
        scaled = {id(optimizer) for known in self._stepped if (optimizer := known()) is not None}
        found = [facts for known, facts in self._found.values() if id(known()) in scaled]
        return max(found, key=lambda facts: facts.times, default=None)

    def _watch(self, name: str) -> None:
        clip = getattr(torch.nn.utils, name)

        @functools.wraps(clip)
        def watched(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return clip(parameters, *args, **kwargs)
            first = parameters[0] if isinstance(parameters, (list, tuple)) and parameters else parameters
            if isinstance(parameters, GeneratorType):
                listed = list(parameters)
                first = listed[0] if listed else None
                parameters = (parameter for parameter in listed)
            with contextlib.suppress(Exception):
                self._note(first, sys._getframe(1))
            return clip(parameters, *args, **kwargs)

        setattr(torch.nn.utils, name, watched)
        setattr(torch.nn.utils.clip_grad, name, watched)

    def _note(self, parameter: Any, frame: Any) -> None:
        scalers = [
            scaler for scaler in self._places.alive(GradScaler) if scaler.is_enabled() and scaler._scale is not None
        ]
        if not scalers:
            return
        for optimizer in self._places.alive(Optimizer):
            if not any(held is parameter for group in optimizer.param_groups for held in group["params"]):
                continue
            states = [scaler._per_optimizer_states.get(id(optimizer)) for scaler in scalers]
            if any(state is not None and state["stage"] is not OptState.READY for state in states):
                return  # they are unscaled
            where = users_line(frame)
            if where is not None and (where in self._found or len(self._found) < _LINES):
                _, facts = self._found.setdefault(where, (weakref.ref(optimizer), ScaledClippingFacts(where)))
                facts.times += 1
            return

"""Watches whether optimizer steps use the gradients that the script clipped.

In warm-up steps only, on a sample of the clipped parameters: a gradient that a backward pass replaces or adds to
between the last call and the step is no longer clipped. Steps within a backward pass or with a closure are left out.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dptune.capture.injected.observe.passes import is_captured, is_in_pass, is_plain_step
from dptune.capture.injected.observe.places import Places, users_line
from dptune.runfile.clipping import ClippingFacts

_FUNCTIONS = ("clip_grad_norm_", "clip_grad_value_")
_LINES = 8
_STEPS = 16
_SAMPLED = 4  # parameters of a call
_LIMITLESS = 1e9  # a call with such a limit only measures the norm

_Gradients = list[tuple[weakref.ref[Any], int | None, int]]  # by parameter: the id of its gradient and its version


@dataclass
class _Watched:
    optimizer: weakref.ref[Any]
    facts: ClippingFacts
    gradients: _Gradients = field(default_factory=list)  # as the last call left them
    passes: int = 0  # backward passes when it ended


class Clipping:
    """Counts the calls by line, and the steps after them."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._watching = False
        self._passes = 0
        self._watched: dict[tuple[str, int], _Watched] = {}
        self._handle: Any = None

    def install(self) -> None:
        """Wrap torch's functions that clip."""
        for name in _FUNCTIONS:
            self._watch(name)

    def begin(self) -> None:
        """Watch from now on, unless an engine clips gradients itself."""
        if self._places.engine is None:
            self._watching = True
            self._handle = register_optimizer_step_pre_hook(self._begins)

    def after_pass(self) -> None:
        """A backward pass has ended."""
        if self._watching and not is_in_pass():
            self._passes += 1

    def end(self) -> None:
        """Watch no more."""
        self._watching = False
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        for watched in self._watched.values():
            watched.gradients = []

    def facts(self) -> list[ClippingFacts]:
        """The facts of each line and optimizer, in the order of their first calls."""
        return [watched.facts for watched in self._watched.values()]

    def _watch(self, name: str) -> None:
        clip = getattr(torch.nn.utils, name)

        @functools.wraps(clip)
        def watched(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._watching or torch.compiler.is_compiling():
                return clip(parameters, *args, **kwargs)
            if isinstance(parameters, Iterable) and not isinstance(parameters, (torch.Tensor, list, tuple)):
                parameters = list(parameters)  # an iterator is read once
            clipped = clip(parameters, *args, **kwargs)
            with contextlib.suppress(Exception):
                limit = args[0] if args else kwargs.get("max_norm", kwargs.get("clip_value"))
                if isinstance(limit, (int, float)) and limit < _LIMITLESS:
                    self._note(parameters, sys._getframe(1))
            return clipped

        setattr(torch.nn.utils, name, watched)
        setattr(torch.nn.utils.clip_grad, name, watched)

    def _note(self, parameters: Any, frame: Any) -> None:
        listed = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        where = users_line(frame)
        if not listed or where is None or is_captured() or is_in_pass():
            return
        for optimizer in self._places.alive(Optimizer):
            if not _holds(optimizer, listed[0]):
                continue
            key = where, id(optimizer)
            watched = self._watched.get(key)
            if watched is None or watched.optimizer() is not optimizer:
                if len(self._watched) >= _LINES:
                    return
                watched = _Watched(weakref.ref(optimizer), ClippingFacts(where, type(optimizer).__name__))
                self._watched[key] = watched
            facts = watched.facts
            facts.calls += 1
            facts.local += _is_local(listed[0], self._places)
            watched.passes = self._passes
            watched.gradients = _gradients(listed[:: max(1, len(listed) // _SAMPLED)])

    def _begins(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._watching or not is_plain_step(args, kwargs):
            return
        with contextlib.suppress(Exception):
            calls = [watched for watched in self._watched.values() if watched.optimizer() is optimizer]
            for watched in calls:
                facts = watched.facts
                if facts.steps >= _STEPS:
                    continue
                facts.steps += 1
                facts.step_where = facts.step_where or users_line(sys._getframe(1))
                facts.changed += self._passes > watched.passes and _have_changed(watched.gradients)


def _holds(optimizer: Any, parameter: Any) -> bool:
    return any(held is parameter for group in optimizer.param_groups for held in group["params"])


def _gradients(parameters: list[Any]) -> _Gradients:
    return [(weakref.ref(parameter), *_gradient(parameter)) for parameter in parameters]


def _gradient(parameter: Any) -> tuple[int | None, int]:
    gradient = parameter.grad
    if gradient is None:
        return None, 0
    local = getattr(gradient, "_local_tensor", gradient)
    return local.data_ptr(), local._version


def _have_changed(before: _Gradients) -> bool:
    """Whether each sampled gradient was replaced or written to."""
    alive = [(parameter, then) for ref, *then in before if (parameter := ref()) is not None]
    changed: Callable[[Any, list[Any]], bool] = lambda parameter, then: list(_gradient(parameter)) != then  # noqa: E731
    return bool(alive) and all(changed(parameter, then) for parameter, then in alive)


def _is_local(parameter: Any, places: Places) -> bool:
    """Whether it is this rank's shard of a parameter that FSDP1 shards."""
    for module in places.alive("FullyShardedDataParallel"):
        if not getattr(module, "sharding_strategy", None) or module.sharding_strategy.name == "NO_SHARD":
            continue
        if module.world_size > 1 and any(held is parameter for held in module.parameters()):
            return True
    return False

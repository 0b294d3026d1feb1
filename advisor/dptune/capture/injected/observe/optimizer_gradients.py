"""Watches which gradients optimizer steps find: none, or those that an earlier step has used.

In warm-up steps only, by a sample of each optimizer's parameters. After a step the tensors that hold gradients are
noted. Gradients are kept if backward passes add to them until the next step, and they were neither removed, replaced,
changed nor zero before any of these passes. Zeros are looked for on the device, and read when the first window opens.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from dptune.capture.injected.observe.module_paths import all_modules
from dptune.capture.injected.observe.places import Places, users_line
from dptune.runfile.optimizer_gradients import OptimizerGradientFacts

_OPTIMIZERS = 8
_STEPS = 16
_PASSES = 128
_SAMPLED = 4  # parameters of an optimizer whose gradients are compared, spread evenly
_ELEMENTS = 64  # of each of these
_SEARCHES = 3  # steps after which parameters with gradients are looked for elsewhere
_LOOKED_AT = 100_000  # parameters of modules that are counted


@dataclass
class _Used:
    """Gradients after a step: by parameter the tensor and its version; `added`: whether a pass has changed them."""

    gradients: list[tuple[weakref.ref[Any], int, int]]
    cleared: bool = False
    added: bool = False
    zero: list[torch.Tensor] = field(default_factory=list)


@dataclass
class _Watched:
    optimizer: weakref.ref[Any]
    facts: OptimizerGradientFacts
    sampled: list[weakref.ref[Any]]
    used: _Used | None = None
    suspects: list[_Used] = field(default_factory=list)


class OptimizerGradients:
    """Follows the gradients of each optimizer from one of its steps to the next; steps with a closure are left out."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._watching = False
        self._inside = 0  # steps that have begun: a closure may run passes of its own
        self._watched: dict[int, _Watched] = {}
        self._passes = 0
        self._line: str | None = None
        self._handles: list[Any] = []
        self._facts: list[OptimizerGradientFacts] = []

    def begin(self) -> None:
        """Watch from now on, but no engine that keeps gradients itself, and no compiled backward pass."""
        if self._places.engine is not None:
            return
        self._watching = True
        self._handles = [
            register_optimizer_step_pre_hook(self._begins),
            register_optimizer_step_post_hook(lambda optimizer, *_: self._ended(optimizer)),
        ]

    def before_pass(self, _: Any) -> None:
        """A backward pass is about to start: what was not cleared by now, it adds to."""
        if not self._watching or self._inside or _is_captured():
            return
        with contextlib.suppress(Exception):
            for watched in self._watched.values():
                if watched.used is not None and not watched.used.cleared:
                    _look(watched.used)

    def after_pass(self) -> None:
        """It has ended."""
        if not self._watching or self._inside:
            return
        with contextlib.suppress(Exception):
            self._passes += 1
            self._line = users_line(sys._getframe(1))
            for watched in self._watched.values():
                if watched.used is not None and not watched.used.cleared:
                    _note(watched.used)
            if self._passes >= _PASSES:
                self._stop()

    def end(self) -> None:
        """Watch no more, and read what was looked for. Not from a hook: torch goes through its hooks then."""
        self._stop()
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _stop(self) -> None:
        if not self._watching:
            return
        self._watching = False
        with contextlib.suppress(Exception):
            for watched in self._watched.values():
                watched.facts.kept = sum(not any(bool(zero) for zero in used.zero) for used in watched.suspects)
            self._facts = [watched.facts for watched in self._watched.values() if watched.facts.steps]
        self._watched = {}

    def facts(self) -> list[OptimizerGradientFacts]:
        """Of each optimizer that stepped."""
        return self._facts

    def _begins(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._inside += 1
        if not self._watching or self._inside > 1 or torch.compiler.is_compiling() or _is_captured():
            return
        with contextlib.suppress(Exception):
            watched = self._of(optimizer)
            if watched is None or not self._passes or any(map(callable, (*args[1:], *kwargs.values()))):
                return
            facts, used = watched.facts, watched.used
            facts.step_where = facts.step_where or users_line(sys._getframe(1))
            facts.backward_where = self._line
            facts.steps += 1
            if not any(parameter.grad is not None for parameter in _parameters(optimizer)):
                facts.without += 1
                if facts.without <= _SEARCHES:
                    facts.elsewhere = max(facts.elsewhere, self._elsewhere())
                    facts.sharded = bool(self._places.sharded)
            if used is not None and used.added and not used.cleared:
                watched.suspects.append(used)

    def _ended(self, optimizer: Any) -> None:
        self._inside = max(0, self._inside - 1)
        if not self._watching or self._inside:
            return
        with contextlib.suppress(Exception):
            watched = self._of(optimizer)
            if watched is not None:
                watched.used = _Used(_gradients(watched.sampled))
                if watched.facts.steps >= _STEPS:
                    self._stop()

    def _of(self, optimizer: Any) -> _Watched | None:
        known = self._watched.get(id(optimizer))
        if known is not None and known.optimizer() is optimizer:
            return known
        if len(self._watched) >= _OPTIMIZERS:
            return None
        parameters = [parameter for parameter in _parameters(optimizer) if parameter.requires_grad]
        sampled = [weakref.ref(parameter) for parameter in parameters[:: max(1, len(parameters) // _SAMPLED)]]
        facts = OptimizerGradientFacts(
            type(optimizer).__name__, where=self._places.line(optimizer), tensors=len(parameters)
        )
        self._watched[id(optimizer)] = _Watched(weakref.ref(optimizer), facts, sampled)
        return self._watched[id(optimizer)]

    def _elsewhere(self) -> int:
        """Parameters of modules with gradients that no optimizer holds."""
        held = {id(one) for optimizer in self._places.alive(Optimizer) for one in _parameters(optimizer)}
        seen: set[int] = set()
        found = 0
        for module in all_modules():
            for parameter in module._parameters.values():
                if parameter is None or id(parameter) in seen or len(seen) >= _LOOKED_AT:
                    continue
                seen.add(id(parameter))
                found += parameter.grad is not None and id(parameter) not in held
        return found


def _parameters(optimizer: Any) -> Iterable[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _gradients(sampled: list[weakref.ref[Any]]) -> list[tuple[weakref.ref[Any], int, int]]:
    return [
        (ref, id(parameter.grad), _local(parameter.grad)._version)
        for ref in sampled
        if (parameter := ref()) is not None and parameter.grad is not None
    ]


def _look(used: _Used) -> None:
    """Whether its gradients are there as the step left them, or as passes since then have."""
    zero: torch.Tensor | None = None
    for ref, tensor, version in used.gradients:
        parameter = ref()
        gradient = None if parameter is None else parameter.grad
        if gradient is None or id(gradient) != tensor or (not used.added and _local(gradient)._version != version):
            used.cleared = True
            return
        is_zero = (_elements(gradient) == 0).all()
        zero = is_zero if zero is None else zero & is_zero.to(zero.device)
    used.cleared = zero is None
    if zero is not None:
        used.zero.append(zero)


def _note(used: _Used) -> None:
    """Whether a pass has added to its gradients."""
    for ref, tensor, version in used.gradients:
        parameter = ref()
        gradient = None if parameter is None else parameter.grad
        if gradient is None or id(gradient) != tensor:
            used.cleared = True
            return
        used.added = used.added or _local(gradient)._version != version


def _local(tensor: Any) -> Any:
    """What this rank holds of it."""
    return getattr(tensor, "_local_tensor", tensor)


@torch.no_grad()
def _elements(tensor: Any) -> Any:
    local = _local(tensor).detach()
    local = local.coalesce().values() if local.layout == torch.sparse_coo else local
    return local.reshape(-1)[:: max(1, local.numel() // _ELEMENTS)][:_ELEMENTS]


def _is_captured() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()

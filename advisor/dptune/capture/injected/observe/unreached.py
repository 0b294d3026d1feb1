"""Finds parameters that no gradient reaches although their modules run with gradients enabled.

In warm-up steps only. A tensor that the script detaches, converts or recomputes outside of autograd cuts the graph.
Calls of the modules whose parameters lack a gradient at the first step of their optimizer are watched until the first
window opens. Left out are parameters that get a gradient later, those with hooks, which may take it away, and those
whose values change: the optimizer brings its own gradients, or the script updates them.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dptune.capture.injected.observe.module_calls import ModuleCalls
from dptune.capture.injected.observe.module_paths import Parents, all_modules, parents, path_of
from dptune.capture.injected.observe.passes import is_in_pass, is_plain_step
from dptune.capture.injected.observe.places import Places
from dptune.runfile.unreached import UnreachedFacts

_MODULES = 2_000  # that are watched
_NAMED = 3
_VALUES = 8  # of a parameter that are compared


@dataclass
class _Watched:
    optimizer: weakref.ref[Any]
    facts: UnreachedFacts
    lacking: dict[int, weakref.ref[Any]]  # parameters without a gradient so far
    modules: dict[int, weakref.ref[Any]] = field(default_factory=dict)  # that hold them
    values: dict[int, torch.Tensor] = field(default_factory=dict)  # some of each such parameter, at the first step
    ran: set[int] = field(default_factory=set)  # which of them, since the last step
    always: set[int] | None = None  # those that ran before each step


class Unreached:
    """By optimizer, the parameters without gradients, and the modules that hold them."""

    def __init__(self, places: Places, calls: ModuleCalls) -> None:
        self._places = places
        self._calls = calls
        self._watching = False
        self._watched: dict[int, _Watched] = {}
        self._handle: Any = None
        self._known: Parents = {}
        self._facts: list[UnreachedFacts] = []

    def begin(self) -> None:
        """Watch from now on, unless an engine keeps gradients, parameters are sharded, or code is compiled."""
        places = self._places
        if places.engine or places.compiled or places.sharded or places.alive("FullyShardedDataParallel"):
            return
        self._watching = True
        self._handle = register_optimizer_step_pre_hook(self._begins)

    def end(self) -> None:
        """Stop watching, and keep the findings."""
        self._watching = False
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        with contextlib.suppress(Exception):
            self._facts = [facts for watched in self._watched.values() if (facts := self._read(watched)) is not None]
        self._watched, self._known = {}, {}

    def facts(self) -> list[UnreachedFacts]:
        """The facts of each optimizer with such parameters."""
        return self._facts

    def _begins(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._watching or not is_plain_step(args, kwargs):
            return
        with contextlib.suppress(Exception):
            watched = self._watched.get(id(optimizer))
            if watched is None or watched.optimizer() is not optimizer:
                self._watched[id(optimizer)] = self._look(optimizer)
                return
            watched.facts.steps += 1
            for at in [at for at, ref in watched.lacking.items() if (each := ref()) is None or each.grad is not None]:
                del watched.lacking[at]
            watched.always = set(watched.ran) if watched.always is None else watched.always & watched.ran
            watched.ran = set()

    def _look(self, optimizer: Any) -> _Watched:
        """At its first step: watch the modules of the parameters that lack a gradient."""
        trained = [
            each for group in optimizer.param_groups for each in group["params"] if each.requires_grad and each.numel()
        ]
        facts = UnreachedFacts(
            type(optimizer).__name__,
            parameters=sum(each.numel() for each in trained),
            where=self._places.line(optimizer),
        )
        lacking = {id(each): weakref.ref(each) for each in trained if each.grad is None and not _is_hooked(each)}
        watched = _Watched(weakref.ref(optimizer), facts, lacking)
        watched.values = {id(each): _some(each) for each in trained if id(each) in lacking}
        if not lacking:
            return watched
        modules = all_modules()
        self._known = self._known or parents(modules)
        for module in modules:
            held = module.__dict__.get("_parameters") or {}
            if len(watched.modules) < _MODULES and any(id(each) in lacking for each in held.values()):
                watched.modules[id(module)] = weakref.ref(module)
                self._calls.after(module, functools.partial(self._ran, watched))
        return watched

    def _ran(self, watched: _Watched, module: Any, output: Any) -> None:
        if torch.is_grad_enabled() and not is_in_pass() and any(each.requires_grad for each in _tensors(output)):
            watched.ran.add(id(module))

    def _read(self, watched: _Watched) -> UnreachedFacts | None:
        facts = watched.facts
        for at, ref in list(watched.lacking.items()):
            if (each := ref()) is not None and not torch.equal(_some(each), watched.values[at]):
                del watched.lacking[at]
        ran = [module for at in watched.always or () if (module := watched.modules[at]()) is not None]
        unreached = [
            module for module in ran if all(id(each) in watched.lacking for each in _own(module) if each.requires_grad)
        ]
        found = {id(each): each.numel() for module in unreached for each in _own(module) if id(each) in watched.lacking}
        if not found or watched.optimizer() is None:
            return None
        facts.unreached, facts.runs = sum(found.values()), facts.steps
        facts.names = list(dict.fromkeys(path_of(module, self._known) for module in unreached))[:_NAMED]
        return facts


def _is_hooked(parameter: Any) -> bool:
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def _some(parameter: Any) -> torch.Tensor:
    """Some of its values."""
    flat: torch.Tensor = parameter.detach().flatten()
    return flat[:: max(1, flat.numel() // _VALUES)].clone()


def _own(module: Any) -> Iterable[Any]:
    return [each for each in module._parameters.values() if each is not None]


def _tensors(output: Any) -> list[torch.Tensor]:
    parts = output.values() if isinstance(output, dict) else output if isinstance(output, (list, tuple)) else (output,)
    return [part for part in parts if isinstance(part, torch.Tensor)]

"""Watches which gradients optimizer steps find: none, those that an earlier step has used, or those of another loss.

In warm-up steps only, by a sample of each optimizer's parameters: the gradients that a step has used are followed until
the next one. Steps that leave the weights as they are, though there are gradients, are no steps: a wrapper that
accumulates may make them. Of an optimizer without gradients its weights are compared, and it is looked for parameters
with gradients that nothing trains. Values are compared on the device, and read when the first window opens.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from dptune.capture.injected.observe.module_paths import all_modules
from dptune.capture.injected.observe.other_losses import OtherLosses, used_at
from dptune.capture.injected.observe.passes import has_closure, is_captured, is_in_pass
from dptune.capture.injected.observe.places import Places, users_line
from dptune.capture.injected.observe.tensor_samples import Sample, alive, changes, samples
from dptune.capture.injected.observe.used_gradients import UsedGradients, leaves
from dptune.runfile.optimizer_gradients import OptimizerGradientFacts

_OPTIMIZERS = 8
_STEPS = 16
_PASSES = 128
_SAMPLED = 4  # parameters of an optimizer whose gradients are compared, spread evenly
_SEARCHES = 3  # steps after which parameters with gradients are looked for elsewhere
_LOOKED_AT = 100_000  # parameters of modules that are counted

_Leaves = Callable[[], Collection[int]]


@dataclass
class _Step:
    """The gradients of the step before, as followed until it; `changed`: whether it changed weights, by some values.

    Empty if that is not known, or if it has written to weights.
    """

    used: UsedGradients | None
    changed: list[torch.Tensor] = field(default_factory=list)


@dataclass
class _Watched:
    optimizer: weakref.ref[Any]
    facts: OptimizerGradientFacts
    sampled: list[weakref.ref[Any]]
    of_others: OtherLosses
    used: UsedGradients | None = None
    steps: list[_Step] = field(default_factory=list)
    before: list[Sample] = field(default_factory=list)  # weights when a step with gradients began
    versions: list[int] = field(default_factory=list)  # of these
    idle: list[Sample] | None = None  # weights at its first step without gradients
    elsewhere: list[Sample] = field(default_factory=list)  # some of the parameters that no optimizer holds
    gradients: list[Sample] = field(default_factory=list)  # of the same parameters, theirs
    frozen: bool = False


class OptimizerGradients:
    """Follows the gradients of each optimizer from one of its steps to the next.

    Steps whose closure runs backward passes are left out.
    """

    def __init__(self, places: Places) -> None:
        self._places = places
        self._watching = False
        self._inside = 0  # steps that have begun: a closure may run passes of its own
        self._watched: dict[int, _Watched] = {}
        self._has_closure = False
        self._runs_passes = False  # the step that has begun
        self._others = False  # optimizers step that are not watched
        self._looked = False  # at gradients before the pass that runs
        self._passes = 0
        self._line: str | None = None
        self._used_at: dict[int, int] = {}  # in the last pass, where optimizers take turns
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

    def before_pass(self, roots: Any) -> None:
        """A backward pass from these tensors is about to start: what was not cleared by now, it adds to."""
        self._runs_passes |= self._inside > 0
        if not self._watching or self._inside or is_in_pass() or is_captured():
            return
        self._looked = True
        reached = functools.cache(lambda: leaves(roots))
        self._follow(lambda used: used.before_pass(reached))
        with contextlib.suppress(Exception):  # a graph may be anything
            self._used_at = used_at(roots) if len(self._watched) > 1 else {}

    def after_pass(self) -> None:
        """It has ended."""
        if not self._watching or self._inside or is_in_pass() or is_captured():
            return
        with contextlib.suppress(Exception):
            self._passes += 1
            self._line = users_line(sys._getframe(1))
            for watched in self._watched.values():
                if not self._looked:
                    watched.used = None  # the pass of another thread began in a step
                if watched.facts.without and any(map(_gradient, watched.sampled)):
                    watched.facts.cleared = True
            self._looked = False
            self._follow(UsedGradients.after_pass)
            if self._passes >= _PASSES:
                self._stop()

    def end(self) -> None:
        """Watch no more, and read what was looked for. Not from a hook: torch goes through its hooks then."""
        self._stop()
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _stop(self) -> None:
        self._watching = False
        modules = functools.cache(_of_modules)
        for watched in self._watched.values():
            with contextlib.suppress(Exception):
                _count(watched, modules)
                self._judge(watched)
                if watched.facts.steps:
                    self._facts.append(watched.facts)
        self._watched = {}

    def facts(self) -> list[OptimizerGradientFacts]:
        """Of each optimizer that stepped."""
        return self._facts

    def _follow(self, follow: Callable[[UsedGradients], None]) -> None:
        for watched in self._watched.values():
            watched.of_others.follow(follow)
            if watched.used is not None:
                try:
                    follow(watched.used)
                except Exception:  # gradients may be any kind of tensor
                    watched.used = None

    def _begins(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling():
            return
        self._inside += 1
        if not self._watching or self._inside > 1 or is_captured():
            return
        with contextlib.suppress(Exception):
            self._runs_passes = False
            self._has_closure = has_closure(args, kwargs)
            if not self._has_closure:
                self._step(self._of(optimizer), optimizer)

    def _step(self, watched: _Watched | None, optimizer: Any) -> None:
        parameters = [parameter for parameter in _parameters(optimizer) if parameter.numel()]
        if watched is None or not self._passes or not parameters:
            return
        facts = watched.facts
        facts.step_where = facts.step_where or users_line(sys._getframe(2))
        facts.backward_where = self._line
        facts.steps += 1
        self._follow_step(watched)
        watched.of_others.before_step()
        watched.steps.append(_Step(watched.used))
        watched.before = samples(parameter for ref in watched.sampled if (parameter := ref()) is not None)
        watched.versions = _versions(watched.before)
        if any(parameter.grad is not None for parameter in parameters):
            return
        facts.without += 1
        watched.before = []
        if watched.idle is None:
            watched.idle = samples(_spread(parameters))
            watched.frozen = not any(parameter.requires_grad for parameter in parameters)
        if facts.without <= _SEARCHES:
            facts.sharded = bool(self._places.sharded)
            self._search(watched, parameters)

    def _follow_step(self, watched: _Watched) -> None:
        if watched.used is not None:
            if is_in_pass():
                watched.used.after_pass()  # a hook steps, as soon as the gradient is there
            watched.used.before_step()

    def _ended(self, optimizer: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self._inside = max(0, self._inside - 1)
        if not self._watching or self._inside or is_captured():
            return
        with contextlib.suppress(Exception):
            watched = self._of(optimizer)
            if self._has_closure and self._runs_passes:
                self._others = True
            elif self._has_closure:  # one that does nothing, as in Lightning's manual optimization
                self._step(watched, optimizer)
            if watched is not None:
                if watched.before and not self._has_closure and watched.versions == _versions(watched.before):
                    watched.steps[-1].changed = changes(watched.before)
                watched.before = []
                watched.used = UsedGradients(watched.sampled)
                for other in self._watched.values():
                    if other is not watched:
                        other.of_others.left_by(watched.of_others, self._used_at, watched.facts.step_where)
                if watched.facts.steps >= _STEPS:
                    self._stop()

    def _of(self, optimizer: Any) -> _Watched | None:
        known = self._watched.get(id(optimizer))
        if known is not None and known.optimizer() is optimizer:
            return known
        if len(self._watched) >= _OPTIMIZERS:
            self._others = True
            return None
        parameters = [parameter for parameter in _parameters(optimizer) if parameter.requires_grad]
        facts = OptimizerGradientFacts(
            type(optimizer).__name__, where=self._places.line(optimizer), tensors=len(parameters)
        )
        sampled = [weakref.ref(parameter) for parameter in _spread(parameters)]
        self._watched[id(optimizer)] = _Watched(weakref.ref(optimizer), facts, sampled, OtherLosses(sampled))
        return self._watched[id(optimizer)]

    def _search(self, watched: _Watched, parameters: list[Any]) -> None:
        """Parameters of modules with gradients that no optimizer holds."""
        held = {id(each) for optimizer in self._places.alive(Optimizer) for each in _parameters(optimizer)}
        seen: set[int] = set()
        found = []
        for module in all_modules():
            for parameter in module._parameters.values():
                if parameter is None or id(parameter) in seen or len(seen) >= _LOOKED_AT:
                    continue
                seen.add(id(parameter))
                if parameter.grad is not None and id(parameter) not in held:
                    found.append(parameter)
        lacking = Counter(tuple(parameter.shape) for parameter in parameters)
        lacking.subtract(tuple(parameter.shape) for parameter in found)
        watched.facts.elsewhere = max(watched.facts.elsewhere, len(found))
        watched.facts.alike = watched.facts.alike or max(lacking.values()) <= 0
        if not watched.elsewhere:
            watched.elsewhere = samples(_spread(found))
            watched.gradients = samples(parameter.grad for parameter, _ in alive(watched.elsewhere))

    def _judge(self, watched: _Watched) -> None:
        """Whether it may be meant to have no gradients."""
        facts = watched.facts
        others = [other.facts for other in self._watched.values() if other is not watched]
        facts.others_train = self._others or any(other.without < other.steps for other in others)
        is_trained = any(map(bool, changes(watched.elsewhere)))
        facts.others_train |= is_trained
        if is_trained or not _have_new(watched.elsewhere, watched.gradients):
            facts.elsewhere, facts.alike = 0, False
        gone = bool(watched.idle) and not alive(watched.idle or [])
        changed = any(map(bool, changes(watched.idle or [])))
        facts.idle = gone or changed or (watched.frozen and facts.others_train)


def _count(watched: _Watched, modules: _Leaves) -> None:
    """Count the steps that use old gradients again, and leave out those that change nothing."""
    followed: list[UsedGradients] | None = None  # since the last step that used gradients
    for step in watched.steps:
        if followed is not None and step.used is not None:
            followed.append(step.used)
        if step.changed and not any(map(bool, step.changed)):
            watched.facts.steps -= 1
            continue
        old = [used for used in followed or [] if used.has_old(modules)]
        watched.facts.kept += bool(old) and not any(used.is_cleared() for used in followed or [])
        followed = []
    watched.facts.of_others, watched.facts.others_where = watched.of_others.count(modules), watched.of_others.where


def _have_new(parameters: list[Sample], gradients: list[Sample]) -> bool:
    """Whether any of these has another gradient now, and is no part of a model that is not used any more."""
    replaced = [parameter for parameter, _ in alive(parameters) if parameter.grad is None]
    return bool(replaced) or len(alive(gradients)) < len(gradients) or any(map(bool, changes(gradients)))


def _of_modules() -> set[int]:
    return {id(parameter) for module in all_modules() for parameter in module._parameters.values()}


def _spread(parameters: list[Any]) -> list[Any]:
    return parameters[:: max(1, len(parameters) // _SAMPLED)]


def _parameters(optimizer: Any) -> Iterable[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _gradient(ref: weakref.ref[Any]) -> bool:
    parameter = ref()
    return parameter is not None and parameter.grad is not None


def _versions(weights: list[Sample]) -> list[int]:
    return [getattr(parameter, "_local_tensor", parameter)._version for parameter, _ in alive(weights)]

"""Watches modules that no optimizer trains, and that compute on the batch as the loader gives it, or on what stays.

In warm-up steps: a module is watched if none of its parameters is in an optimizer, and none of its layers draws random
numbers or updates statistics. Its inputs are compared with the tensors of the last batches, by some of their values:
libraries draw a batch ahead, or all batches of an accumulated step at once. The values of its weights, at the end, are
compared with those at the start. Calls whose output needs a gradient do not count. A module that changes torch's
generator draws random numbers, however it does so.

A module with the same inputs in every step, such as an encoder of one prompt: all values of the inputs are compared
with those of the first step, and some of the outputs.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from dptune.capture.injected.observe.module_calls import ModuleCalls
from dptune.capture.injected.observe.module_paths import Parents, all_modules, parents, path_of
from dptune.capture.injected.observe.passes import is_captured, is_in_pass
from dptune.capture.injected.observe.places import Places, users_line
from dptune.capture.injected.observe.planned_epochs import trainer_epochs
from dptune.capture.injected.observe.tensor_samples import Sample, changes, elements, samples
from dptune.runfile.repeated_forward import FrozenFeatureFacts

_MODULES = 16  # that are watched
_STEPS = 2  # at least, that are timed
_COMPARED = 8  # calls of a module whose inputs are compared
_TENSORS = 16  # of a batch
_BATCHES = 9  # the last ones: a step of eight micro-batches, and one that is drawn ahead
_EARLY = 64  # batches before the first step ends; where nothing is recorded it never begins to watch
_SAME = 4  # different inputs of a step that may return in the next
_MOST_VALUES = 2**22  # of an input that is kept
_NEAR = 0.01  # relative: of values that were cast to 16 bits
_RANDOM = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm, nn.RNNBase)


@dataclass
class _Watched:
    module: weakref.ref[Any]
    facts: FrozenFeatureFacts
    weights: list[Sample]
    begun_ns: int = 0
    step_ns: int = 0  # in the step that runs
    inputs: list[list[tuple[torch.Tensor, list[torch.Tensor]]]] = field(default_factory=list)
    trained: bool = False  # a gradient goes through it
    random: bool = False  # it draws random numbers
    generator: torch.Tensor | None = None  # its state before the call
    fixed: bool = True  # its inputs are those of the first step
    first: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = field(default_factory=list)  # inputs, some of outputs
    number: int | None = None  # of the inputs of this call


class FrozenFeatures:
    """The modules, with the time that they take in each step."""

    def __init__(self, places: Places, calls: ModuleCalls) -> None:
        self._places = places
        self._calls = calls
        self._watched: list[_Watched] = []
        self._batches: deque[list[tuple[int, torch.Tensor]]] = deque(maxlen=_BATCHES)  # of each tensor: size, values
        self._over = False  # no more calls are shown
        self._early = 0  # batches before modules are watched
        self._drawn = False  # in the step that runs
        self._begun_ns = 0
        self._thread = 0
        self._facts: list[FrozenFeatureFacts] = []

    def begin(self) -> None:
        """Watch from now on, but no code that torch.compile reads."""
        if self._places.compiled or self._places.engine:
            return
        with contextlib.suppress(Exception):  # modules may be anything
            self._thread = threading.get_ident()
            modules = all_modules()
            known = parents(modules)
            for module in _frozen(modules, known, self._places)[:_MODULES]:
                weights = samples(each for each in module.parameters() if each.numel())[:4]
                watched = _Watched(weakref.ref(module), FrozenFeatureFacts(path_of(module, known)), weights)
                self._calls.before(module, functools.partial(self._enters, watched))
                self._calls.after(module, functools.partial(self._leaves, watched))
                self._watched.append(watched)
            self._begun_ns = time.perf_counter_ns()

    def drawn(self, batch: Any) -> None:
        """A loader has returned this batch."""
        if self._over or not torch.is_grad_enabled():
            return
        self._early += not self._begun_ns
        if not self._begun_ns and self._early > _EARLY:
            return
        with contextlib.suppress(Exception), torch._C.DisableTorchFunction():  # a batch may be anything
            tensors = islice(_tensors(batch), _TENSORS)
            self._batches.append([(tensor.numel(), elements(tensor)) for tensor in tensors])  # it may be copied
            self._drawn = True

    def ticked(self) -> None:
        """A step has ended."""
        now_ns = time.perf_counter_ns()
        for watched in self._watched:
            if watched.step_ns and (self._drawn or watched.fixed):
                watched.facts.step_ns.append(now_ns - self._begun_ns)
                watched.facts.spent_ns.append(watched.step_ns)
            watched.step_ns = 0
        self._begun_ns, self._drawn = now_ns, False

    def end(self) -> None:
        """Compare: no more calls are shown."""
        with contextlib.suppress(Exception):
            for watched in self._watched:
                watched.facts.same_inputs = len(watched.first) if watched.fixed else 0
            self._facts = [watched.facts for watched in self._watched if _counts(watched)]
            for facts in self._facts:
                facts.epochs = trainer_epochs(self._places.alive("Trainer"))
        self._watched, self._over = [], True
        self._batches.clear()

    def facts(self) -> list[FrozenFeatureFacts]:
        """The facts of modules whose results are those of the batch alone."""
        return sorted(self._facts, key=lambda facts: -facts.step_share)

    def _enters(self, watched: _Watched, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        watched.begun_ns = 0
        if threading.get_ident() != self._thread or is_in_pass() or is_captured():
            return
        every = [*_tensors([*args, *kwargs.values()])]
        watched.number = self._number(watched, every)
        if not self._batches and not watched.fixed:
            return
        given = [tensor for tensor in every if tensor.numel() > 1]
        floating = [tensor for tensor in given if tensor.is_floating_point()]
        if not given or any(tensor.requires_grad for tensor in given):
            watched.trained = watched.trained or bool(given)
            return
        if self._batches and len(watched.inputs) < _COMPARED:
            compared = floating or given
            watched.inputs.append(
                [
                    (elements(tensor), [values for size, values in chain(*self._batches) if size == tensor.numel()])
                    for tensor in compared
                ]
            )
        watched.facts.where = watched.facts.where or users_line(sys._getframe(1))
        watched.generator = torch.get_rng_state()
        watched.begun_ns = time.perf_counter_ns()

    @staticmethod
    def _number(watched: _Watched, given: list[torch.Tensor]) -> int | None:
        """Which of the inputs of the first step these are; those of the first step are kept."""
        if not watched.fixed:
            return None
        for number, (inputs, _) in enumerate(watched.first):
            if len(inputs) == len(given) and all(map(_equal, inputs, given)):
                return number
        values = sum(tensor.numel() for tensor in given)
        if watched.facts.step_ns or len(watched.first) >= _SAME or not given or values > _MOST_VALUES:
            watched.fixed, watched.first = False, []
            return None
        watched.first.append(([tensor.detach().clone() for tensor in given], []))
        return len(watched.first) - 1

    def _leaves(self, watched: _Watched, _: Any, output: Any) -> None:
        if not watched.begun_ns:
            return
        watched.step_ns += time.perf_counter_ns() - watched.begun_ns
        watched.facts.calls += 1
        before = watched.generator
        watched.random = watched.random or before is None or not torch.equal(torch.get_rng_state(), before)
        outputs = [*_tensors(output)]
        watched.trained = watched.trained or any(tensor.requires_grad for tensor in outputs)
        if watched.fixed and watched.number is not None:
            known, values = watched.first[watched.number][1], [elements(tensor) for tensor in outputs]
            if known:
                watched.fixed = len(known) == len(values) and all(map(_agree, known, values))  # up to rounding
            known[:] = values


def _frozen(modules: list[Any], known: Parents, places: Places) -> list[Any]:
    """The outermost modules with parameters, of which no optimizer has one, that give the same for the same inputs."""
    groups = [group for optimizer in places.alive(Optimizer) for group in optimizer.param_groups]
    held = {id(parameter) for group in groups for parameter in group["params"]}
    frozen = [
        module for module in modules if (own := [*module.parameters()]) and not any(id(each) in held for each in own)
    ]
    inside = {id(module) for module in frozen}
    outermost = [module for module in frozen if id(known.get(id(module), (None,))[0]) not in inside]
    return [module for module in outermost if not _is_random(module)]


def _is_random(module: Any) -> bool:
    return any(each.training and isinstance(each, _RANDOM) for each in module.modules())


def _counts(watched: _Watched) -> bool:
    """Whether its inputs are fixed, or of the batch in all compared calls, and its weights stay as they are."""
    if watched.trained or watched.random or len(watched.facts.step_ns) < _STEPS:
        return False
    if not watched.weights or any(map(bool, changes(watched.weights))):
        return False
    if watched.facts.same_inputs:
        return True
    return bool(watched.inputs) and all(
        any(_agree(values, each) for each in batch) for call in watched.inputs for values, batch in call
    )


def _agree(values: torch.Tensor, others: torch.Tensor) -> bool:
    if values.shape != others.shape:
        return False
    return torch.allclose(values.double().cpu(), others.double().cpu(), rtol=_NEAR, atol=1e-6)


def _equal(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    return tensor.dtype == other.dtype and tensor.device == other.device and torch.equal(tensor, other)


def _tensors(holder: Any) -> Iterator[torch.Tensor]:
    if isinstance(holder, torch.Tensor):
        yield holder
    elif isinstance(holder, (list, tuple, dict)) or hasattr(holder, "to_tuple"):
        parts = holder.values() if hasattr(holder, "values") else holder if not hasattr(holder, "to_tuple") else ()
        for part in list(parts)[:_TENSORS]:
            yield from _tensors(part)

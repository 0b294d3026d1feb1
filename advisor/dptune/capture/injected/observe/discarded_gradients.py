"""Finds backward passes whose gradients are cleared before any optimizer steps, and those whose gradients add up.

In warm-up steps only, by a sample of each optimizer's parameters. A pass is pending from its end until an optimizer
steps, or a GradScaler skips the step; it is discarded when all sampled gradients that it changed are cleared before.
A pass adds to the one before it in its step if it changes all gradients that this one changed, its graph was made after
that one, and neither weights nor gradients were changed in between. Passes inside a pass, as of reentrant
checkpointing, are part of it. Gradients and weights are compared on their device, and the results are read when the
first window opens. `zero_grad` and `GradScaler.step` are wrapped until then.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from dptune.capture.injected.observe.loss_graph import consumers
from dptune.capture.injected.observe.passes import is_captured, is_in_pass
from dptune.capture.injected.observe.places import Places, is_the_users, users_line
from dptune.capture.injected.observe.tensor_samples import Sample, alive, elements
from dptune.runfile.discarded_gradients import DiscardedGradientFacts

_STEPS = 16
_PASSES = 128
_OPTIMIZERS = 8
_OF_OPTIMIZER = 16  # parameters, spread evenly
_COMPARED = 2  # of those whose gradients a pass changed
_FRAMES = 8
_NODES = 20_000  # of a graph; more are not read
_TOLERANCE = 0.01  # of the largest gradient: rounding of 16-bit gradients by a factor
_SAME_SHARE = 0.9  # of the elements; clipping by value changes the largest ones

_Gradients = dict[int, tuple[int, int]]  # by parameter: the tensor and its version
_Stack = tuple[tuple[str, int], ...]  # the script's lines


@dataclass
class _Pass:
    stack: _Stack
    held: set[int]  # parameters whose gradients it changed and nothing has cleared
    adds: bool
    between: list[torch.Tensor]  # weights and gradients that are not as the pass before left them
    weights: list[Sample]
    gradients: list[Sample]


@dataclass
class _Discarded:
    stack: _Stack  # of the pass
    where: str | None  # what cleared its gradients
    changed: list[torch.Tensor]  # weights that are not as they were after the pass


@dataclass
class _Step:
    line: str | None
    stack: _Stack
    passes: int
    discarded: list[_Discarded]
    adds: bool
    between: list[torch.Tensor]
    factors: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)  # after the pass, and in the step


class DiscardedGradients:
    """Follows backward passes, the clearing of gradients and optimizer steps."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._watching = False
        self._inside: Any = None  # the optimizer that steps; its closure may run passes of its own
        self._sampled: dict[int, weakref.ref[Any]] = {}
        self._before: _Gradients = {}
        self._left: _Gradients = {}  # after the last pass
        self._number = 0  # of the first operator after it
        self._adds: tuple[bool, list[torch.Tensor]] = (True, [])
        self._pending: list[_Pass] = []
        self._discarded: list[_Discarded] = []
        self._steps: list[_Step] = []
        self._passes = 0
        self._line: str | None = None  # of the last pass
        self._restore: list[Callable[[], None]] = []
        self._facts: DiscardedGradientFacts | None = None

    def begin(self) -> None:
        """Watch from now on, but no engine that keeps gradients itself."""
        if self._places.engine is not None:
            return
        with contextlib.suppress(Exception):
            for optimizer in self._places.alive(Optimizer)[:_OPTIMIZERS]:
                self._sampled |= _sample(optimizer)
            self._watching = bool(self._sampled)
        if self._watching:
            self._wrap(Optimizer, "zero_grad", self._before_clearing)
            self._wrap(nn.Module, "zero_grad", self._before_clearing)
            self._wrap(GradScaler, "step", lambda scaler, *args: self._used())
            handles = (
                register_optimizer_step_pre_hook(lambda optimizer, *_: self._step_begins(optimizer)),
                register_optimizer_step_post_hook(lambda optimizer, *_: self._step_ended(optimizer)),
            )
            self._restore += [handle.remove for handle in handles]

    def before_pass(self, roots: Any) -> None:
        """A backward pass from these tensors is about to start."""
        if not self._watching or self._inside is not None or is_in_pass():
            return
        self._adds = (False, [])
        with contextlib.suppress(Exception):
            self._before = self._gradients()
            if self._pending:
                self._clear({key for key in self._sampled if key not in self._before}, None)
            self._adds = self._follows(roots)

    def after_pass(self) -> None:
        """It has ended."""
        if not self._watching or self._inside is not None or is_in_pass():
            return
        with contextlib.suppress(Exception):
            self._passes += 1
            if self._passes > _PASSES or is_captured():
                self._steps = []  # a graph that is captured allows no reading
                self._stop()
                return
            self._left = after = self._gradients()
            self._number = _next_number()
            changed = [key for key, state in after.items() if self._before.get(key) != state]
            if changed:
                parameters = [
                    parameter for key in changed[:_COMPARED] if (parameter := self._sampled[key]()) is not None
                ]
                frame = sys._getframe(1)
                self._line = users_line(frame)
                follows, between = self._adds
                adds = follows and (not self._pending or self._pending[-1].held <= set(changed))
                self._pending.append(
                    _Pass(_stack(frame), set(changed), adds, between, _weights(parameters), _slopes(parameters))
                )

    def _follows(self, roots: Any) -> tuple[bool, list[torch.Tensor]]:
        """Whether a pass adds to the last one, and what shows whether values were changed after that."""
        if not self._pending:
            return True, []
        last = self._pending[-1]
        between = [(elements(weight) != before).any() for weight, before in alive(last.weights)]
        between += [
            (elements(parameter.grad) != before).any()
            for parameter, before in alive(last.gradients)
            if parameter.grad is not None
        ]
        return self._before == self._left and _is_made_since(self._number, roots), between

    def end(self) -> None:
        """Stop, and read what was compared. Not from a hook: torch goes through its hooks then."""
        self._stop()
        for restore in self._restore:
            with contextlib.suppress(Exception):
                restore()
        self._restore = []

    def facts(self) -> DiscardedGradientFacts | None:
        """None where no optimizer step was seen."""
        return self._facts

    def _stop(self) -> None:
        self._watching = False
        with contextlib.suppress(Exception):
            if self._steps:
                self._facts = _read(self._steps)
        self._pending, self._discarded, self._steps, self._sampled = [], [], [], {}

    def _wrap(self, kind: Any, name: str, before: Callable[..., None]) -> None:
        call = getattr(kind, name)

        @functools.wraps(call)
        def watched(this: Any, *args: Any, **kwargs: Any) -> Any:
            if self._watching and not torch.compiler.is_compiling():
                with contextlib.suppress(Exception):
                    before(this, *args)
            return call(this, *args, **kwargs)

        def restore() -> None:
            if getattr(kind, name) is watched:
                setattr(kind, name, call)

        setattr(kind, name, watched)
        self._restore.append(restore)

    def _before_clearing(self, holder: Any, *_: Any) -> None:
        if not self._pending or self._inside is not None:
            return
        parameters = _parameters(holder) if isinstance(holder, Optimizer) else holder.parameters()
        self._clear({id(parameter) for parameter in parameters}, users_line(sys._getframe(1)))

    def _clear(self, parameters: set[int], where: str | None) -> None:
        for passed in list(self._pending):
            passed.held -= parameters
            if not passed.held:
                self._pending.remove(passed)
                changed = [(elements(weight) != before).any() for weight, before in alive(passed.weights)]
                self._discarded.append(_Discarded(passed.stack, where, changed))

    def _step_begins(self, optimizer: Any) -> None:
        if not self._watching or self._inside is not None or torch.compiler.is_compiling():
            return
        with contextlib.suppress(Exception):
            self._used()
            self._inside = optimizer

    def _step_ended(self, optimizer: Any) -> None:
        if self._inside is optimizer:
            self._inside = None

    def _used(self) -> None:
        """An optimizer uses the gradients of all pending passes, or would use them if they were finite."""
        pending, discarded = self._pending, self._discarded
        self._pending, self._discarded = [], []
        if (not pending and not discarded) or is_in_pass():
            return
        step = _Step(
            self._line,
            (pending or discarded)[-1].stack,
            len(pending) + len(discarded),
            discarded,
            not discarded and all(passed.adds for passed in pending),
            [change for passed in pending for change in passed.between],
        )
        if discarded and pending:
            step.factors = [
                (before, elements(parameter.grad))
                for parameter, before in alive(pending[-1].gradients)
                if parameter.grad is not None
            ]
        elif discarded and self._gradients():
            step.discarded = []  # set by hand, or the gradients of another optimizer
        self._steps.append(step)
        if len(self._steps) >= _STEPS:
            self._stop()

    def _gradients(self) -> _Gradients:
        found = {}
        for key, ref in self._sampled.items():
            parameter = ref()
            gradient = None if parameter is None else parameter.grad
            if gradient is not None:
                found[key] = (id(gradient), getattr(gradient, "_local_tensor", gradient)._version)
        return found


def _sample(optimizer: Any) -> dict[int, weakref.ref[Any]]:
    parameters = [parameter for parameter in _parameters(optimizer) if parameter.requires_grad]
    stride = max(1, len(parameters) // _OF_OPTIMIZER)
    return {id(parameter): weakref.ref(parameter) for parameter in parameters[::stride]}


def _parameters(optimizer: Any) -> Iterable[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _weights(parameters: list[Any]) -> list[Sample]:
    return [(weakref.ref(parameter), elements(parameter)) for parameter in parameters]


def _slopes(parameters: list[Any]) -> list[Sample]:
    """Of dense gradients."""
    return [
        (weakref.ref(parameter), elements(parameter.grad))
        for parameter in parameters
        if parameter.grad is not None and parameter.grad.layout == torch.strided
    ]


def _stack(frame: FrameType | None) -> _Stack:
    found: list[tuple[str, int]] = []
    while frame is not None and len(found) < _FRAMES:
        if is_the_users(frame.f_code.co_filename):
            found.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


def _next_number() -> int:
    """That autograd gives to the next operator of this thread; where torch does not say, one that it never gives."""
    number = getattr(torch.autograd, "_get_sequence_nr", None)
    return sys.maxsize if number is None else int(number())


def _is_made_since(number: int, roots: Any) -> bool:
    """Whether all operators above these tensors are numbered from there on; False of a graph too large to read."""
    tensors = roots if isinstance(roots, (list, tuple)) else [roots]
    nodes = consumers([tensor.grad_fn for tensor in tensors], _NODES)
    return len(nodes) < _NODES and all(node._sequence_nr() >= number for node in nodes)


def _read(steps: list[_Step]) -> DiscardedGradientFacts:
    facts = DiscardedGradientFacts()
    for step in steps:
        certain = [
            discarded
            for discarded in step.discarded
            if discarded.stack == step.stack and not any(bool(changed) for changed in discarded.changed)
        ]
        if not all(_is_multiple(before, used) for before, used in step.factors):
            certain = []
        if certain:
            facts.where = facts.where or certain[0].where
            facts.backward_where = facts.backward_where or step.line
        facts.passes.append(step.passes)
        facts.discarded.append(len(certain))
        facts.added.append(step.passes if step.adds and not any(map(bool, step.between)) else 0)
    return facts


def _is_multiple(before: torch.Tensor, used: torch.Tensor) -> bool:
    """Whether gradients are those that a pass left, times one factor, as clipping and a GradScaler make them."""
    before, used = before.double().cpu(), used.double().cpu()
    if before.shape != used.shape or not before.isfinite().all():
        return False
    largest = before.abs().argmax()
    if not before[largest]:
        return not used.any()
    factor = used[largest] / before[largest]
    same = (used - factor * before).abs() <= _TOLERANCE * (factor * before[largest]).abs()
    return bool(factor.isfinite()) and bool(same.double().mean() >= _SAME_SHARE)

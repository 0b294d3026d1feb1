"""Where gradients are read, and where a step ends, for those that count the micro-batches of a module."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch.amp.grad_scaler import GradScaler
from torch.nn.utils import clip_grad
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

# Functions of torch.nn.utils that read the gradients of the parameters they are given, where this torch has them.
_OF_PARAMETERS = ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_")
_OF_GRADIENTS = ("get_total_norm",)
_known: weakref.WeakKeyDictionary[Any, tuple[int, set[int]]] = weakref.WeakKeyDictionary()


class Listener(Protocol):
    """What is reported, with parameters by identity; None stands for gradients of which that is not known."""

    @property
    def waits(self) -> bool:
        """Whether it counts something that clearing gradients would end."""

    def before_reading(self, parameters: set[int] | None = None) -> None:
        """Gradients are about to be read."""

    def ended(self, parameters: set[int]) -> None:
        """A step has ended, or a GradScaler has skipped it."""

    def cleared(self, parameters: set[int]) -> None:
        """Gradients were thrown away."""

    def given_closure(self, parameters: set[int]) -> None:
        """A step begins that runs backward passes inside."""


def install(listeners: Sequence[Listener]) -> None:
    """Hook into every optimizer, GradScaler, clipping and zero_grad. `listeners` may grow afterwards."""
    _hook_steps(listeners)
    _hook_scaler(listeners)
    _hook_clipping(listeners)
    for kind in (Optimizer, torch.nn.Module):
        _hook_zeroing(kind, listeners)


def _hook_steps(listeners: Sequence[Listener]) -> None:
    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        parameters = _parameters(optimizer)
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        for listener in listeners:
            if callable(closure):
                listener.given_closure(parameters)
            listener.before_reading(parameters)

    def after(optimizer: Any, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            _tell_end(listeners, optimizer)

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)


def _hook_scaler(listeners: Sequence[Listener]) -> None:
    unscale: Any = GradScaler.unscale_
    step: Any = GradScaler.step

    @functools.wraps(unscale)
    def unscaling(this: Any, optimizer: Any) -> None:
        _tell_reading(listeners, optimizer)
        unscale(this, optimizer)

    @functools.wraps(step)
    def stepping(this: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        _tell_reading(listeners, optimizer)
        result = step(this, optimizer, *args, **kwargs)
        _tell_end(listeners, optimizer)  # also where it was skipped, so that the optimizer did not see it
        return result

    GradScaler.unscale_ = unscaling  # type: ignore[method-assign, assignment]
    GradScaler.step = stepping  # type: ignore[method-assign, assignment]


def _hook_clipping(listeners: Sequence[Listener]) -> None:
    for name in (*_OF_PARAMETERS, *_OF_GRADIENTS):
        read: Any = getattr(torch.nn.utils, name, None)
        if read is None:
            continue

        reading = _after_telling(read, listeners, name in _OF_PARAMETERS)
        setattr(torch.nn.utils, name, reading)
        if hasattr(clip_grad, name):
            setattr(clip_grad, name, reading)


def _after_telling(read: Any, listeners: Sequence[Listener], of_parameters: bool) -> Any:
    @functools.wraps(read)
    def reading(*args: Any, **kwargs: Any) -> Any:
        first = "" if args else next((name for name in ("parameters", "tensors") if name in kwargs), "")
        if args or first:
            things, items = _kept(args[0] if args else kwargs[first])
            for listener in listeners:
                listener.before_reading({id(item) for item in items} if of_parameters else None)
            args = (things, *args[1:]) if args else ()
            kwargs = {**kwargs, first: things} if first else kwargs
        return read(*args, **kwargs)

    return reading


def _kept(things: Any) -> tuple[Any, Iterable[Any]]:
    """What a function is given, to be given on, and its items: an iterator can be gone through once only."""
    if isinstance(things, torch.Tensor) or not hasattr(things, "__iter__"):
        return things, (things,)
    items = list(things)
    return (things if isinstance(things, types.GeneratorType) and not items else items), items


def _hook_zeroing(kind: Any, listeners: Sequence[Listener]) -> None:
    clear = kind.zero_grad

    @functools.wraps(clear)
    def clearing(this: Any, *args: Any, **kwargs: Any) -> None:
        clear(this, *args, **kwargs)
        if torch.compiler.is_compiling() or not any(registered.waits for registered in listeners):
            return
        cleared = (
            _parameters(this) if isinstance(this, Optimizer) else {id(parameter) for parameter in this.parameters()}
        )
        for listener in listeners:
            listener.cleared(cleared)

    kind.zero_grad = clearing


def _tell_reading(listeners: Sequence[Listener], optimizer: Any) -> None:
    parameters = _parameters(optimizer)
    for listener in listeners:
        listener.before_reading(parameters)


def _tell_end(listeners: Sequence[Listener], optimizer: Any) -> None:
    parameters = _parameters(optimizer)
    for listener in listeners:
        listener.ended(parameters)


def _parameters(optimizer: Any) -> set[int]:
    groups = getattr(optimizer, "param_groups", ())
    count = sum(len(group["params"]) for group in groups)
    known = _known.get(optimizer)
    if known is None or known[0] != count:
        known = _known[optimizer] = count, {id(parameter) for group in groups for parameter in group["params"]}
    return known[1]

"""Whether an evaluation of a trained model builds graphs for backward passes that never run.

From a call of `.eval()` by the script on, calls of modules are watched until that module is called; nothing else is
looked at. It counts if gradients are enabled in that call, parameters of the module require them, and no backward pass
runs before the module is back in training mode: adversarial examples and models that are trained in evaluation mode
have one. Two such evaluations are the habit of the script, not an accident.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from dptune.capture.injected.observe.places import caller, is_the_users, users_function

_TIMES = 2


class _Evaluation(NamedTuple):
    """The module, the script's function that put it into evaluation mode, and the backward passes before that."""

    module: weakref.ref[Any]
    where: str | None
    passes: int


class EvaluationGraphs:
    """`where`: the function of the script that evaluates with gradients enabled; None if none does."""

    def __init__(self, passes: Callable[[], int]) -> None:
        self._passes = passes
        self._pending: _Evaluation | None = None  # not called yet
        self._open: _Evaluation | None = None  # called with gradients enabled
        self._call: Any = None
        self._wrapped: Any = None
        self._times = 0
        self._where: str | None = None

    @property
    def where(self) -> str | None:
        """As `function (file:line)`, the line of `.eval()`."""
        return self._where if self._times >= _TIMES else None

    def install(self) -> None:
        """Watch both modes."""
        self._watch_eval()
        self._watch_train()

    def _watch_eval(self) -> None:
        evaluate = nn.Module.eval

        @functools.wraps(evaluate)
        def watched(this: Any) -> Any:
            result = evaluate(this)
            with contextlib.suppress(Exception):
                self._begin(this, users_function(sys._getframe(1)))
            return result

        nn.Module.eval = watched  # type: ignore[method-assign, assignment]

    def _watch_train(self) -> None:
        train = nn.Module.train

        @functools.wraps(train)
        def watched(this: Any, mode: bool = True) -> Any:
            with contextlib.suppress(Exception):
                if mode is True:
                    self._end(this)
            return train(this, mode)

        nn.Module.train = watched  # type: ignore[method-assign, assignment]

    def _begin(self, module: Any, where: str | None) -> None:
        frame = caller(sys._getframe(2))
        if self._times >= _TIMES or frame is None or not is_the_users(frame.f_code.co_filename):
            return
        if not any(parameter.requires_grad for parameter in module.parameters()):
            return
        self._pending, self._open = _Evaluation(weakref.ref(module), where, self._passes()), None
        if self._wrapped is None:
            self._watch_calls()

    def _watch_calls(self) -> None:
        call = self._call = nn.Module.__call__
        observer = self  # torch's profiler takes what such a frame calls `self` for the module

        @functools.wraps(call)
        def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
            pending = observer._pending
            if pending is not None and pending.module() is self:
                observer._pending = None
                if torch.is_grad_enabled():
                    observer._open = pending
                observer._unwatch()
            return call(self, *args, **kwargs)

        self._wrapped = nn.Module.__call__ = watched  # type: ignore[method-assign]

    def _unwatch(self) -> None:
        if nn.Module.__call__ is self._wrapped:
            nn.Module.__call__, self._wrapped = self._call, None  # type: ignore[method-assign]

    def _end(self, module: Any) -> None:
        evaluation = self._open
        if evaluation is None or evaluation.module() is not module:
            return
        self._open = None
        if self._passes() == evaluation.passes:
            self._times, self._where = self._times + 1, evaluation.where

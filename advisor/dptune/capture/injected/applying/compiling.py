"""torch.compile from outside: of the module that holds all parameters of an optimizer, at its first training call.

The outermost such module is compiled. Of DistributedDataParallel it is the module inside, whose graph torch splits at
DDP's buckets, as it does where a script compiles the wrapper.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from dptune.capture.injected.applying.constructing import follow
from dptune.capture.injected.applying.requested import asked

_NAME = "compile.model"
_MOST_CALLS = 1000  # of modules while an optimizer waits for its own: a step has fewer


class _Waiting:
    """Optimizers whose module was not called yet, by their parameters; modules are looked at only meanwhile."""

    def __init__(self) -> None:
        self._parameters: list[set[int]] = []
        self._calls = 0
        self._call: Any = None
        self._watched: Any = None

    def expect(self, optimizer: Any) -> None:
        """Compile the module of this optimizer when it is called."""
        if self._watched is None:
            self._watch()
        self._parameters.append({id(parameter) for group in optimizer.param_groups for parameter in group["params"]})

    def _watch(self) -> None:
        call = self._call = nn.Module.__call__
        observer = self  # torch's profiler takes what such a frame calls `self` for the module

        @functools.wraps(call)
        def called(self: Any, *args: Any, **kwargs: Any) -> Any:
            if observer._parameters and self.training and torch.is_grad_enabled():
                observer._look_at(self)
            return call(self, *args, **kwargs)

        self._watched = nn.Module.__call__ = called  # type: ignore[method-assign]

    def _look_at(self, module: Any) -> None:
        held = {id(parameter) for parameter in module.parameters()}
        waiting = [parameters for parameters in self._parameters if not parameters <= held]
        self._calls += 1
        if len(waiting) < len(self._parameters):
            _compile(module.module if isinstance(module, DistributedDataParallel) else module)
        elif self._calls >= _MOST_CALLS:
            asked.refuse(_NAME, "the script calls no module that holds all parameters of the optimizer")
            waiting = []
        self._parameters = waiting
        if not waiting and nn.Module.__call__ is self._watched:
            nn.Module.__call__ = self._call  # type: ignore[method-assign]
            self._watched = None


def _compile(module: Any) -> None:
    """As `module.compile()`, which leaves modules of torch itself, such as Sequential, uncompiled."""
    call = module._call_impl

    def called(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    module._compiled_call_impl = torch.compile(called)


def compiling(value: bool) -> None:
    """Compile the model; what the script compiles itself stays compiled."""
    if value:
        follow(Optimizer, _Waiting().expect)
    else:
        asked.refuse(_NAME, "it can be switched on but not off: TORCHDYNAMO_DISABLE=1 switches it off")


APPLIERS: dict[str, Callable[[Any], None]] = {_NAME: compiling}

"""Where the script makes parameters float64: by converting a module, or through torch's default dtype."""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.optim import Optimizer

from dptune.capture.injected.observe.places import Places, users_line
from dptune.runfile.double_precision import DoubledFacts

_MODULE = ("double", "to", "type")
_DEFAULT = ("set_default_dtype", "set_default_tensor_type")
_CALLS = 64  # that are remembered


@dataclass
class _Call:
    """A call after which a module, or torch's default dtype, is float64. `module` is None for the default."""

    facts: DoubledFacts
    module: weakref.ref[nn.Module] | None = None


class Doubling:
    """Remembers the calls that converted modules to float64, or set the default dtype to it."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._calls: list[_Call] = []
        self._made: dict[int, tuple[weakref.ref[Any], DoubledFacts]] = {}  # parameters that were made float64

    def install(self) -> None:
        """Wrap the methods of nn.Module, and torch's functions. In compiled code they are called as they are."""
        for name in _MODULE:
            self._watch_module(name)
        for name in _DEFAULT:
            self._watch_default(name)
        register_module_parameter_registration_hook(self._registered)

    def facts(self) -> DoubledFacts | None:
        """The last call that converted a module with float64 parameters of an optimizer; else that set the default.

        Else the line that made the first such parameter, with its module's class.
        """
        updated = {
            id(tensor)
            for optimizer in self._places.alive(Optimizer)
            for group in optimizer.param_groups
            for tensor in group["params"]
            if tensor.dtype == torch.float64
        }
        if not updated:
            return None
        default = None
        for call in reversed(self._calls):
            if call.module is None:
                default = default or call.facts
            elif (module := call.module()) is not None and any(
                id(parameter) in updated for parameter in module.parameters()
            ):
                return call.facts
        made = (facts for at, (parameter, facts) in self._made.items() if at in updated and parameter() is not None)
        return default or next(made, None)

    def _registered(self, module: Any, name: str, parameter: Any) -> None:
        with contextlib.suppress(Exception):
            if parameter is not None and parameter.dtype == torch.float64 and len(self._made) < _CALLS:
                where = users_line(sys._getframe(1))
                self._made[id(parameter)] = weakref.ref(parameter), DoubledFacts(where, type(module).__name__)

    def _watch_module(self, name: str) -> None:
        convert = getattr(nn.Module, name)

        @functools.wraps(convert)
        def watched(this: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return convert(this, *args, **kwargs)
            before = _is_double(this)
            converted = convert(this, *args, **kwargs)
            with contextlib.suppress(Exception):
                if not before and _is_double(this):
                    self._remember(f"nn.Module.{name}", weakref.ref(this))
            return converted

        setattr(nn.Module, name, watched)

    def _watch_default(self, name: str) -> None:
        change = getattr(torch, name)

        @functools.wraps(change)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return change(*args, **kwargs)
            changed = change(*args, **kwargs)
            with contextlib.suppress(Exception):
                if torch.get_default_dtype() == torch.float64:
                    self._remember(f"torch.{name}", None)
            return changed

        setattr(torch, name, watched)

    def _remember(self, through: str, module: weakref.ref[nn.Module] | None) -> None:
        """Called by a wrapper, which the script or a library called."""
        if len(self._calls) < _CALLS:
            self._calls.append(_Call(DoubledFacts(users_line(sys._getframe(2)), through), module))


def _is_double(module: Any) -> bool:
    """Whether its first floating-point parameter is float64."""
    with contextlib.suppress(Exception):
        first = next(parameter for parameter in module.parameters() if parameter.is_floating_point())
        return bool(first.dtype == torch.float64)
    return False

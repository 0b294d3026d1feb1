"""Shows observers the calls of chosen modules, without leaving anything on the modules of the script.

`nn.Module.__call__` is wrapped while it watches chosen modules: a hook on a module would be copied, pickled and
compiled with it. Without any it is left alone: torch.compile guards on it, so what is compiled meanwhile would be
compiled again afterwards.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Before = Callable[[Any, tuple[Any, ...], dict[str, Any]], None]
After = Callable[[Any, Any], None]


class ModuleCalls:
    """Calls of modules that were chosen with `before` and `after`, from `begin` to `end`."""

    def __init__(self) -> None:
        self._before: dict[int, list[tuple[weakref.ref[Any], Before]]] = {}
        self._after: dict[int, list[tuple[weakref.ref[Any], After]]] = {}
        self._call: Any = None
        self._wrapped: Any = None
        self._watching = False

    def before(self, module: Any, act: Before) -> None:
        """Call `act` with the module and its arguments before each of its calls."""
        self._before.setdefault(id(module), []).append((weakref.ref(module), act))
        self._wrap()

    def after(self, module: Any, act: After) -> None:
        """Call `act` with the module and what it returned after each of its calls."""
        self._after.setdefault(id(module), []).append((weakref.ref(module), act))
        self._wrap()

    @property
    def watching(self) -> bool:
        """Whether calls are watched."""
        return self._watching

    def begin(self) -> None:
        """Watch calls from now on."""
        self._watching = True
        self._wrap()

    def _wrap(self) -> None:
        if not self._watching or self._wrapped is not None or not (self._before or self._after):
            return
        call = self._call = nn.Module.__call__
        observer = self  # torch's profiler takes what such a frame calls `self` for the module

        @functools.wraps(call)
        def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
            at = id(self)
            if (at not in observer._before and at not in observer._after) or torch.compiler.is_compiling():
                return call(self, *args, **kwargs)
            for ref, prepare in observer._before.get(at, ()):
                if ref() is self:
                    with contextlib.suppress(Exception):
                        prepare(self, args, kwargs)
            output = call(self, *args, **kwargs)
            for ref, follow in observer._after.get(at, ()):
                if ref() is self:
                    with contextlib.suppress(Exception):
                        follow(self, output)
            return output

        self._wrapped = nn.Module.__call__ = watched  # type: ignore[method-assign]

    def pause(self) -> None:
        """Stop watching until `begin`."""
        self._watching = False
        if self._wrapped is not None and nn.Module.__call__ is self._wrapped:
            nn.Module.__call__ = self._call  # type: ignore[method-assign]
        self._wrapped = None

    def end(self) -> None:
        """Stop watching, and forget the modules."""
        self.pause()
        self._before, self._after = {}, {}

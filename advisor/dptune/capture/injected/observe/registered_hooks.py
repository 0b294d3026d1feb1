"""Counts hooks that the script registers on modules while it trains, by line, and which of them are never removed.

The cost is a walk up the stack for each hook after the first optimizer step, of which most scripts register none. The
functions of forward hooks are known from the start.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections import defaultdict
from collections.abc import Callable
from types import CodeType
from typing import Any

from torch import nn

from dptune.capture.injected.observe.places import is_the_users, users_line
from dptune.runfile.registered_hooks import RegisteredHookFacts

_FORWARD = ("register_forward_hook", "register_forward_pre_hook")
_METHODS = (*_FORWARD, "register_full_backward_hook", "register_full_backward_pre_hook")
_LINES, _HOOKS = 16, 10_000  # that are remembered
_FUNCTIONS = 64

_Hook = tuple[int, Any, int]  # the optimizer step, a weak reference to the module's hooks, and the number in them


class RegisteredHooks:
    """The hooks by line; nothing is kept alive.

    `forward`: by function of the script that is a forward hook, what counts the modules that have it.
    """

    def __init__(self) -> None:
        self.forward: dict[CodeType, Callable[[], int]] = {}
        self._handles: dict[CodeType, list[tuple[Any, int]]] = defaultdict(list)
        self._steps = 0
        self._lines: dict[str, list[_Hook]] = defaultdict(list)

    def install(self) -> None:
        """Wrap the methods of modules that register hooks."""
        for method in _METHODS:
            self._watch(method)

    def stepped(self) -> None:
        """An optimizer has made a step."""
        self._steps += 1

    def facts(self) -> list[RegisteredHookFacts]:
        """The lines whose hooks are still there."""
        found = []
        for where, hooks in self._lines.items():
            kept = [step for step, place, number in hooks if number in (place() or ())]
            if kept:
                found.append(RegisteredHookFacts(where, len(kept), len(set(kept)), self._steps))
        return found

    def _watch(self, method: str) -> None:
        register = getattr(nn.Module, method)

        @functools.wraps(register)
        def watched(this: Any, *args: Any, **kwargs: Any) -> Any:
            handle = register(this, *args, **kwargs)
            if method in _FORWARD:
                with contextlib.suppress(Exception):
                    self._note_function(handle)
            if self._steps:
                with contextlib.suppress(Exception):
                    self._note(handle, users_line(sys._getframe(1)))
            return handle

        setattr(nn.Module, method, watched)

    def _note_function(self, handle: Any) -> None:
        code = _code(handle.hooks_dict_ref()[handle.id])
        if code is None or not is_the_users(code.co_filename):
            return
        handles = self._handles[code]
        if code not in self.forward and len(self.forward) < _FUNCTIONS:
            self.forward[code] = lambda: len({id(hooks()) for hooks, number in handles if number in (hooks() or ())})
        if len(handles) < _HOOKS:
            handles.append((handle.hooks_dict_ref, handle.id))

    def _note(self, handle: Any, where: str | None) -> None:
        if where is None or (where not in self._lines and len(self._lines) >= _LINES):
            return
        if len(self._lines[where]) < _HOOKS:
            self._lines[where].append((self._steps, handle.hooks_dict_ref, handle.id))


def _code(hook: Any) -> CodeType | None:
    """Of a function or method, or of an object that is called; None for what is written in C."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    for function in (hook, type(hook).__call__):
        code = getattr(getattr(function, "__func__", function), "__code__", None)
        if isinstance(code, CodeType):
            return code
    return None

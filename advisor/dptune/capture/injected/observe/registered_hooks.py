"""Counts hooks that the script registers on modules while it trains, by line, and which of them are never removed.

The cost is a walk up the stack for each hook after the first optimizer step, of which most scripts register none.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections import defaultdict
from typing import Any

from torch import nn

from dptune.capture.injected.observe.places import users_line
from dptune.runfile.registered_hooks import RegisteredHookFacts

_METHODS = (
    *("register_forward_hook", "register_forward_pre_hook"),
    *("register_full_backward_hook", "register_full_backward_pre_hook"),
)
_LINES, _HOOKS = 16, 10_000  # that are remembered

_Hook = tuple[int, Any, int]  # the optimizer step, a weak reference to the module's hooks, and the number in them


class RegisteredHooks:
    """The hooks by line; nothing is kept alive."""

    def __init__(self) -> None:
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
            if self._steps:
                with contextlib.suppress(Exception):
                    self._note(handle, users_line(sys._getframe(1)))
            return handle

        setattr(nn.Module, method, watched)

    def _note(self, handle: Any, where: str | None) -> None:
        if where is None or (where not in self._lines and len(self._lines) >= _LINES):
            return
        if len(self._lines[where]) < _HOOKS:
            self._lines[where].append((self._steps, handle.hooks_dict_ref, handle.id))

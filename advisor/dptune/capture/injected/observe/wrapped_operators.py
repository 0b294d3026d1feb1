"""Operators of torch that are wrapped for a while, so that their calls are seen."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch

Note = Callable[[str, tuple[Any, ...], dict[str, Any], Any], None]


class WrappedOperators:
    """Calls `note(name, args, kwargs, result)` after each call, from the frame that wraps it."""

    def __init__(self, note: Note) -> None:
        self._note = note
        self._restore: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        """Whether any is wrapped now."""
        return bool(self._restore)

    def wrap(self, holder: Any, name: str) -> None:
        """Wrap a function of a module, or a method, which may be inherited."""
        call, inherited = getattr(holder, name), name not in vars(holder)

        @functools.wraps(call)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():  # a script may compile with fullgraph=True while it is wrapped
                return call(*args, **kwargs)
            result = call(*args, **kwargs)
            with contextlib.suppress(Exception):
                self._note(name.strip("_"), args, kwargs, result)
            return result

        def restore() -> None:
            if vars(holder).get(name) is watched:
                if inherited:
                    delattr(holder, name)
                else:
                    setattr(holder, name, call)

        setattr(holder, name, watched)
        self._restore.append(restore)

    def unwrap(self) -> None:
        """Put back what was there."""
        for restore in self._restore:
            with contextlib.suppress(Exception):
                restore()
        self._restore = []

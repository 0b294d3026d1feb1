"""Changes the arguments with which a script makes things, and things once they are made."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from dptune.capture.injected.speech import say

Arguments = dict[str, Any]
_adjusting: dict[type, list[Callable[[Arguments], None]]] = {}
_following: dict[type, list[Callable[[Any], None]]] = {}


def adjust(kind: type, change: Callable[[Arguments], None]) -> None:
    """Let `change` alter the arguments, by name, of every object of that kind that is made from now on."""
    _wrap(kind)
    _adjusting[kind].append(change)


def follow(kind: type, change: Callable[[Any], None]) -> None:
    """Call `change` with every object of that kind right after it was made."""
    _wrap(kind)
    _following[kind].append(change)


def _wrap(kind: type) -> None:
    if kind in _adjusting:
        return
    adjusting = _adjusting[kind] = []
    following = _following[kind] = []
    construct = kind.__init__  # type: ignore[misc]
    signature = inspect.signature(construct)

    @functools.wraps(construct)
    def constructed(this: Any, *args: Any, **kwargs: Any) -> None:
        try:
            bound = signature.bind(this, *args, **kwargs)
        except TypeError:  # the script's own mistake: let it see the error that it would have seen
            construct(this, *args, **kwargs)
            return
        for change in adjusting:
            _guarded(change, bound.arguments)
        construct(*bound.args, **bound.kwargs)
        for change in following:
            _guarded(change, this)

    kind.__init__ = constructed  # type: ignore[misc]


def _guarded(change: Callable[[Any], None], what: Any) -> None:
    try:
        change(what)
    except Exception as error:
        say(f"a setting could not be changed: {type(error).__name__}: {error}")

"""Changes the arguments with which a script makes things, and things once they are made."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

from dptune.capture.injected.messages import say

Arguments = dict[str, Any]
_adjusting: dict[type, list[Callable[[Arguments], None]]] = {}
_following: dict[type, list[Callable[[Any], None]]] = {}
_in_the_making = threading.local()


def adjust(kind: type, change: Callable[[Arguments], None]) -> None:
    """Let `change` alter the arguments, by name, of every object of that kind that is made from now on.

    The arguments are those that `kind` itself is given: by the script, or by the constructor of a subclass.
    """
    if kind not in _adjusting:
        _adjusting[kind] = []
        _adjust(kind)
    _adjusting[kind].append(change)


def argument(kind: type, name: str, value: Any) -> None:
    """Give every object of that kind this value of an argument."""
    adjust(kind, lambda given: given.__setitem__(name, value))


def follow(kind: type, change: Callable[[Any], None]) -> None:
    """Call `change` with every object of that kind once it is whole: after the constructor of its own class."""
    if kind not in _following:
        _following[kind] = []
        _follow(kind)
    _following[kind].append(change)


def _adjust(kind: type) -> None:
    construct = kind.__init__  # type: ignore[misc]
    signature = inspect.signature(construct)

    @functools.wraps(construct)
    def constructed(this: Any, *args: Any, **kwargs: Any) -> None:
        try:
            bound = signature.bind(this, *args, **kwargs)
        except TypeError:  # the script's own mistake: let it see the error that it would have seen
            construct(this, *args, **kwargs)
            return
        for change in _adjusting[kind]:
            _guarded(change, bound.arguments)
        construct(*bound.args, **bound.kwargs)

    kind.__init__ = constructed  # type: ignore[misc]


def _follow(kind: type) -> None:
    """A subclass goes on after the constructor of `kind`: those there are, and those to come, are wrapped as well."""
    for subclass in _family(kind):
        _end_with(kind, subclass)
    begin = vars(kind).get("__init_subclass__")

    def begun(cls: type[Any], /, **kwargs: Any) -> None:
        if begin is None:
            super(kind, cls).__init_subclass__(**kwargs)  # type: ignore[arg-type]
        else:
            begin.__func__(cls, **kwargs)
        _end_with(kind, cls)

    kind.__init_subclass__ = classmethod(begun)  # type: ignore[assignment]


def _family(kind: type) -> list[type]:
    found = [kind]
    for parent in found:  # it grows
        below: list[type] = type.__subclasses__(parent)
        found.extend(sub for sub in below if sub not in found)
    return found


def _end_with(kind: type, subclass: type) -> None:
    construct = vars(subclass).get("__init__")
    if construct is None:
        return

    @functools.wraps(construct)
    def constructed(this: Any, *args: Any, **kwargs: Any) -> None:
        unfinished: set[int] = vars(_in_the_making).setdefault("unfinished", set())
        outermost = id(this) not in unfinished
        unfinished.add(id(this))
        try:
            construct(this, *args, **kwargs)
        finally:
            if outermost:
                unfinished.discard(id(this))
        if outermost:
            for change in _following[kind]:
                _guarded(change, this)

    constructed.__signature__ = inspect.signature(construct)  # type: ignore[attr-defined]
    subclass.__init__ = constructed  # type: ignore[misc]


def _guarded(change: Callable[[Any], None], what: Any) -> None:
    try:
        change(what)
    except Exception as error:
        say(f"a setting could not be changed: {type(error).__name__}: {error}")

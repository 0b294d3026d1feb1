"""Finds the collection of the script that holds some tensors, its name, and the line that adds to it.

The way goes up from the tensors by what refers to them: a tuple or a dict of each step, the list of all of these, and
the object or the module that has that list. A list that nothing refers to is a variable of a running function: the
one that the sources of these functions add to, if there is but one. Variables are not read: that could keep them alive.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import linecache
import re
import sys
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

from torch.utils.data import Dataset

from dptune.capture.injected.observe.places import is_the_users, users_place

_WIDEST = 8
_PASSING = (types.FrameType, types.CellType)
_LEVELS = 4  # from a tensor to the collection: a tuple, a dict, an object of each step
_NUMBERS = r"\.(?:item|tolist)\(\)|\bfloat\(|\bint\("  # what is added is no tensor
_DETACHED = re.compile(r"\.detach\(\)|" + _NUMBERS)
_LIMITED = re.compile(r"replay|buffer|cache|memory|pool|queue", re.IGNORECASE)
Found = tuple[str, str | None, bool]  # name, line, and whether it is limited


def holder(tensors: list[Any]) -> Found | None:
    """What holds all of these; None where it is not found."""
    level: list[Any] = tensors
    ours = [tensors]  # lists of this function
    for _ in range(_LEVELS):
        if len(level) < 2:
            return None
        mine = {id(thing) for thing in ours} | {id(ours)}
        above = [
            referrer
            for referrer in gc.get_referrers(*level)
            if id(referrer) not in mine and not isinstance(referrer, _PASSING)
        ]
        for referrer in above:
            held = {id(item) for item in _items(referrer)}
            if all(id(item) in held for item in level):
                return _named(referrer)
        level = [
            referrer for referrer in above if isinstance(referrer, (tuple, list, dict)) or hasattr(referrer, "__dict__")
        ][:_WIDEST]
        ours += [above, level]
    return None


def _items(collection: Any) -> Iterator[Any]:
    if isinstance(collection, dict):
        yield from collection.values()
    elif isinstance(collection, (list, tuple, set, deque)):
        yield from collection


def _named(collection: Any) -> Found:
    limited = isinstance(collection, deque) and collection.maxlen is not None
    adds = _adds(collection)
    for referrer in gc.get_referrers(collection):
        if isinstance(referrer, (*_PASSING, list, tuple)):
            continue
        names = referrer if isinstance(referrer, dict) else getattr(referrer, "__dict__", {})
        name = next((name for name, value in names.items() if value is collection and isinstance(name, str)), "")
        if not name:
            continue
        if isinstance(referrer, dict) and "__name__" in referrer and "__builtins__" in referrer:
            where = _adding(str(referrer.get("__file__", "")), rf"\b{name}{adds}", 1, None)
            return name, where, limited or bool(_LIMITED.search(name))
        owners = gc.get_referrers(referrer) if isinstance(referrer, dict) else [referrer]
        owner = next(
            (candidate for candidate in owners if candidate is referrer or _has(candidate, names, name, collection)),
            None,
        )
        if owner is not None and not isinstance(owner, dict):
            return _attribute(owner, name, adds, limited)
    return _variable(adds, limited)


def _has(owner: Any, names: dict[str, Any], name: str, collection: Any) -> bool:
    """Whether these are the attributes of that object, or class."""
    if isinstance(owner, type):
        return owner.__dict__.get(name) is collection
    return getattr(owner, "__dict__", None) is names


def _adds(collection: Any) -> str:
    """What follows its name in a line that adds to it."""
    if isinstance(collection, dict):
        return r"\s*(?:\.(?:update|setdefault)\(|\[[^]]*\]\s*=[^=])"
    return r"\s*(?:\.(?:append|appendleft|extend|add|insert)\(|\+=\s*[\[(])"


def _attribute(owner: Any, name: str, adds: str, limited: bool) -> Found:
    kind = owner if isinstance(owner, type) else type(owner)
    full = f"{kind.__name__}.{name}"
    limited = limited or isinstance(owner, Dataset) or bool(_LIMITED.search(full))
    where = None
    with contextlib.suppress(OSError, TypeError):  # there may be no source
        lines, first = inspect.getsourcelines(kind)
        where = _adding(inspect.getfile(kind), rf"\.{name}{adds}", first, first + len(lines))
    return full, where, limited


def _variable(adds: str, limited: bool) -> Found:
    """The one variable that running functions of the script add something to that is no number."""
    found = {}
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        code, file = frame.f_code, frame.f_code.co_filename
        if is_the_users(file) and code.co_name != "<module>":
            with contextlib.suppress(OSError, TypeError):
                lines, first = inspect.getsourcelines(code)
                for name in code.co_varnames + code.co_cellvars:
                    where = _adding(file, rf"(?<![.\w]){name}{adds}(?!.*(?:{_NUMBERS}))", first, first + len(lines))
                    if where is not None:
                        found[name] = where
        frame = frame.f_back
    if len(found) != 1:
        return "", None, limited
    ((name, where),) = found.items()
    return name, where, limited or bool(_LIMITED.search(name))


def _adding(file: str, adds: str, first: int, end: int | None) -> str | None:
    """`file:line` of the one line that adds to it, by its source; of several that which adds nothing detached."""
    lines = linecache.getlines(file)[first - 1 : None if end is None else end - 1]
    found = [at for at, line in enumerate(lines, first) if re.search(adds, line.partition("#")[0])]
    if len(found) > 1:
        found = [at for at in found if not _DETACHED.search(lines[at - first])]
    return users_place(file, found[0]) if len(found) == 1 else None

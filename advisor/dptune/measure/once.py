"""What follows from a trace, a view or a run, computed once for each: several figures take it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

Read = TypeVar("Read")
Value = TypeVar("Value")


def once_for_each(read: Callable[[Read], Value]) -> Callable[[Read], Value]:
    """Compute it once for each view, trace or run. The value is kept as long as that and must not refer to it."""
    kept: WeakKeyDictionary[Read, Value] = WeakKeyDictionary()

    @wraps(read)
    def of(each: Read) -> Value:
        if each not in kept:
            kept[each] = read(each)
        return kept[each]

    return of

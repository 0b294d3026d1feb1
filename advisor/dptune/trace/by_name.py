"""What follows from a name alone, found once for each name: traces of a run repeat a few thousand of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVar

LONGEST_CHARACTERS = 1024  # of a name that is kept; longer ones are looked at each time
MOST_NAMES = 2**14  # that are kept, the latest used

Value = TypeVar("Value")


def once_per_name(find: Callable[[str], Value]) -> Callable[[str], Value]:
    """The same function with a memory for its latest results; `find` depends on the name alone."""
    known = lru_cache(MOST_NAMES)(find)

    @wraps(find)
    def of(name: str) -> Value:
        return known(name) if len(name) <= LONGEST_CHARACTERS else find(name)

    return of

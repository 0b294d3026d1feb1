"""Finds lines that join the values of all steps so far in each step: their lists grow by the same number each time.

In warm-up steps. Calls of torch are seen by the mode of `same_results`; those of NumPy are wrapped until the first
window opens, unless Numba is there, which compiles by what a name stands for. Only lengths are kept.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from dptune.capture.injected.observe.places import Places, caller, function_name, is_the_users, users_place
from dptune.capture.injected.observe.wrapped_operators import WrappedOperators
from dptune.runfile.histories import HistoryFacts

JOINING = frozenset(("cat", "concat", "concatenate", "stack", "vstack", "hstack"))
_LINES = 64
_STEPS = 3  # in a row, from each of which to the next the list grows by the same number


class Histories:
    """The lines, with the lengths of their lists by step."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._operators = WrappedOperators(self._called)
        self._step = 0
        self._lengths: dict[tuple[str, str], dict[int, set[int]]] = {}  # by function and line

    def begin(self) -> None:
        """Watch NumPy from now on, where the script has it."""
        numpy = sys.modules.get("numpy")
        if numpy is None or "numba" in sys.modules or self._places.compiled:
            return
        for name in JOINING:
            if hasattr(numpy, name):
                self._operators.wrap(numpy, name)

    def ticked(self) -> None:
        """A step of the recording has ended."""
        self._step += 1

    def end(self) -> None:
        """Watch no more."""
        self._operators.unwrap()

    def joined(self, parts: Any, frame: FrameType | None) -> None:
        """A function of torch or NumPy joins these parts for that frame."""
        frame = caller(frame)
        if frame is None or type(parts) not in (list, tuple) or not is_the_users(frame.f_code.co_filename):
            return
        where = users_place(frame.f_code.co_filename, frame.f_lineno)
        key = (function_name(frame.f_code), where or "")
        if where and (key in self._lengths or len(self._lengths) < _LINES):
            self._lengths.setdefault(key, {}).setdefault(self._step, set()).add(len(parts))

    def facts(self) -> list[HistoryFacts]:
        """The lines whose lists grow in each step, those with the longest lists first."""
        found = [_growing(function, where, by_step) for (function, where), by_step in self._lengths.items()]
        return sorted((facts for facts in found if facts is not None), key=lambda facts: -facts.length)

    def _called(self, operator: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if args:
            self.joined(args[0], sys._getframe(2))


def _growing(function: str, where: str, by_step: dict[int, set[int]]) -> HistoryFacts | None:
    """None unless the list has the same length at each call in a step, and holds as many values of each step so far."""
    steps = sorted(by_step)[-_STEPS:]
    if len(steps) < _STEPS or steps[-1] - steps[0] != _STEPS - 1 or any(len(by_step[step]) > 1 for step in steps):
        return None
    first, middle, last = (max(by_step[step]) for step in steps)
    grows = last - middle
    if grows <= 0 or middle - first != grows or abs(last - grows * (steps[-1] + 1)) > grows:
        return None
    return HistoryFacts(where, function, last, grows, steps[-1])

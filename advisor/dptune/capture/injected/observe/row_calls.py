"""Finds calls of a module with one row each, for the items of a list in a loop: one call with all rows could do.

Outermost calls in the warm-up steps, by the lines of the script that lead to them. Each loop must call the same module
once for each item, with one shape and without a backward pass between, and the module must not keep a state.
"""

from __future__ import annotations

import contextlib
import weakref
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import nn

from dptune.capture.injected.observe.call_contents import tensors_in
from dptune.capture.injected.observe.item_loops import items
from dptune.capture.injected.observe.places import function_name, is_the_users
from dptune.capture.injected.observe.source_loops import Line, place
from dptune.runfile.row_calls import RowCallsFacts

_LEAST_ITEMS = 2
_NAMED = 4
_MOST = 64  # places that are looked at

_Key = tuple[Line, ...]


@dataclass
class _Loops:
    """Of the module that is called at one place: `left` calls are due in the loop that runs; `ref` to the module."""

    function: str
    where: str
    module: str
    ref: Any
    fits: bool = True
    calls: int = 0
    loops: int = 0
    items: int = 0
    left: int = 0
    like: Any = None
    by_step: list[int] = field(default_factory=list)  # calls of each watched step


class RowCalls:
    """By place, the calls of one module with one row each."""

    def __init__(self) -> None:
        self._found: dict[_Key, _Loops] = {}
        self._facts: list[RowCallsFacts] = []

    def entered(self, module: Any, given: Any, lines: tuple[Line, ...], frame: FrameType, after: int) -> None:
        """An outermost module is called, after so many backward passes."""
        if not lines or (lines not in self._found and len(self._found) >= _MOST):
            return
        with contextlib.suppress(Exception):  # arguments and sources may be anything
            loops = self._found.get(lines) or self._first(lines, module, frame)
            if loops.fits:
                loops.fits = loops.ref() is module and self._counts(loops, given, frame, after)

    def stepped(self) -> None:
        """An optimizer has made a step: no loop goes on."""
        for loops in self._found.values():
            loops.fits = loops.fits and not loops.left

    def ticked(self) -> None:
        """A step of the recording has ended."""
        for loops in self._found.values():
            loops.fits = loops.fits and not loops.left
            loops.by_step.append(loops.calls)
            loops.calls = 0

    def end(self) -> None:
        """Keep what was found in every step from its first on, of modules that have not kept anything from a call."""
        fit = [loops for loops in self._found.values() if loops.fits and len(loops.by_step) > 1 and min(loops.by_step)]
        fit = [loops for loops in fit if (module := loops.ref()) is not None and not keeps_state(module)]
        fit.sort(key=lambda loops: -sum(loops.by_step))
        self._facts = [
            RowCallsFacts(loops.function, loops.where, loops.module, loops.items, loops.by_step[-1])
            for loops in fit[:_NAMED]
        ]
        self._found = {}

    def facts(self) -> list[RowCallsFacts]:
        """The places, the most calls first."""
        return self._facts

    def _first(self, lines: _Key, module: Any, frame: FrameType) -> _Loops:
        found = items(frame)
        function, where = "", ""
        if found is not None:
            around, inner = found[0], frame
            function = type(module).__name__
            while inner is not around and inner.f_back is not None:
                if is_the_users(inner.f_code.co_filename):
                    function = function_name(inner.f_code)
                inner = inner.f_back
            where = place((around.f_code.co_filename, around.f_lineno))
        loops = _Loops(function, where, type(module).__name__, weakref.ref(module), fits=found is not None)
        self._found[lines] = loops
        return loops

    @staticmethod
    def _counts(loops: _Loops, given: Any, frame: FrameType, after: int) -> bool:
        """Whether the call is the next of a loop, or the first of a new one."""
        tensor = next(tensors_in(given), None)
        if tensor is None or (tensor.dim() > 1 and tensor.shape[0] != 1) or not tensor.dim():
            return False
        like = (tuple(tensor.shape), after)
        if not loops.left:
            found = items(frame)
            if found is None or found[1] < _LEAST_ITEMS:
                return False
            loops.left, loops.like = found[1], like
            loops.items = max(loops.items, found[1])
            loops.loops += 1
        loops.left -= 1
        loops.calls += 1
        return bool(like == loops.like)


def keeps_state(module: nn.Module) -> bool:
    """Whether a module in it holds tensors beside its parameters and buffers, as from one call to the next."""
    for part in module.modules():
        own = {name: value for name, value in vars(part).items() if not name.startswith("_")}
        if next((tensor for tensor in tensors_in(own) if not isinstance(tensor, torch.nn.Parameter)), None) is not None:
            return True
    return False

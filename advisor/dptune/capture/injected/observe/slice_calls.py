"""Finds loops that call a module with one slice of a tensor after the other: one call with all slices could do.

In warm-up steps, calls that a function of the script makes directly, in a loop whose rounds are independent by its
source. Each call of a loop must be given a view of one tensor, of one shape, which nothing changes between the calls,
and no other tensor that differs between them. The module must not keep a state.

Also loops over calls of a recurrent cell, or of a layer for one step each: whether their inputs are known before the
loop. And loops over like modules on the same input (`sibling_calls`).
"""

from __future__ import annotations

import contextlib
import weakref
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from torch import nn

from dptune.capture.injected.observe.call_contents import tensors_in
from dptune.capture.injected.observe.cell_inputs import cell_loop
from dptune.capture.injected.observe.item_loops import is_independent
from dptune.capture.injected.observe.places import caller, function_name, is_the_users, relative
from dptune.capture.injected.observe.row_calls import keeps_state
from dptune.capture.injected.observe.sibling_calls import SiblingCalls
from dptune.runfile.row_calls import CellLoopFacts, SliceCallsFacts

LEAST_SLICES = 4  # of a loop
_NAMED = 4
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
_MOST = 64  # modules at places that are looked at
_MOST_PLACES = 512

_Key = tuple[CodeType, int, int]


@dataclass
class _Loop:
    """Of a module that is called at one place: `like` is what the calls of the loop that runs have in common."""

    module: Any
    fits: bool = True
    base: Any = None
    like: tuple[Any, ...] = ()
    slices: int = 0
    least: int = 0  # slices of any loop so far
    calls: int = 0
    by_step: list[int] = field(default_factory=list)

    def ended(self) -> None:
        """No further call belongs to the loop that runs."""
        if self.slices:
            self.least = min(self.least or self.slices, self.slices)
            self.fits = self.fits and self.slices >= LEAST_SLICES
        self.base, self.like, self.slices = None, (), 0


class SliceCalls:
    """By place, the calls of one module with one slice each."""

    def __init__(self) -> None:
        self._found: dict[_Key, _Loop] = {}
        self._facts: list[SliceCallsFacts] = []
        self._cells: dict[tuple[CodeType, str], bool] = {}  # loops over cells: whether their inputs are known before
        self._siblings = SiblingCalls()
        self._functions: dict[tuple[CodeType, int], CodeType] = {}
        self._independent: dict[tuple[CodeType, int], bool] = {}  # places of the script

    def entered(self, module: Any, given: Any, frame: FrameType | None, after: int) -> None:
        """A module is called, after so many backward passes."""
        frame = caller(frame)
        if frame is None:
            return
        if len(self._cells) < _MOST and _is_step(module, given):
            with contextlib.suppress(Exception):  # sources may be anything
                self._note_cell(module, frame)
        place = frame.f_code, frame.f_lineno
        if place not in self._independent:
            if len(self._independent) >= _MOST_PLACES or not is_the_users(frame.f_code.co_filename):
                return
            self._independent[place] = is_independent(frame.f_code.co_filename, frame.f_lineno)
            self._functions[place] = _function(frame)
        self._siblings.entered(place, module, given, after)
        loop = self._found.get((*place, id(module)))
        if loop is None:
            if len(self._found) >= _MOST or not self._independent[place]:
                return
            loop = self._found[(*place, id(module))] = _Loop(weakref.ref(module))
        if loop.fits and loop.module() is module:
            with contextlib.suppress(Exception):  # arguments may be anything
                self._count(loop, given, after)

    def _note_cell(self, module: Any, frame: FrameType) -> None:
        around = cell_loop(frame)
        if around is not None:
            loop, known, called = around
            key = _function(loop), type(module if called is None else called).__name__
            self._cells[key] = known and self._cells.get(key, True)

    def cell_loops(self) -> list[CellLoopFacts]:
        """The functions that loop over cells."""
        return [
            CellLoopFacts(function_name(code), f"{relative(code.co_filename)}:{code.co_firstlineno}", module, known)
            for (code, module), known in self._cells.items()
        ]

    @staticmethod
    def _count(loop: _Loop, given: Any, after: int) -> None:
        first, *others = tensors_in(given)
        if first._base is None or not first.dim():
            loop.fits = False
            return
        base, like = first._base, (first._version, tuple(first.shape), after, *map(id, others))
        if (loop.base is None or loop.base() is not base) or like != loop.like:
            loop.ended()
            loop.base, loop.like = weakref.ref(base), like
        loop.slices += 1
        loop.calls += 1

    def ticked(self) -> None:
        """A step of the recording has ended."""
        for loop in self._found.values():
            loop.ended()
            loop.by_step.append(loop.calls)
            loop.calls = 0
        self._siblings.ticked()

    def end(self) -> None:
        """Keep what was found in every step from its first on, of modules that have not kept anything from a call."""
        found = []
        for (code, line, _), loop in self._found.items():
            module = loop.module()
            steps = loop.by_step
            if loop.fits and module is not None and len(steps) > 1 and min(steps) and not keeps_state(module):
                found.append(_facts(self._functions[code, line], line, module, loop))
        for place, siblings in self._siblings.fitting():
            found.append(
                SliceCallsFacts(
                    *_places(self._functions[place], place[1]),
                    module=siblings.kind.__name__,
                    slices=siblings.least,
                    calls=siblings.by_step[-1],
                    siblings=True,
                )
            )
        self._facts = sorted(found, key=lambda facts: -facts.calls)[:_NAMED]
        self._found = {}

    def facts(self) -> list[SliceCallsFacts]:
        """The places, the most calls first."""
        return self._facts


def _is_step(module: Any, given: Any) -> bool:
    """Whether it is a cell, or a recurrent layer that is given one step and a state."""
    if isinstance(module, nn.RNNCellBase):
        return True
    if not isinstance(module, nn.RNNBase):
        return False
    tensors = list(tensors_in(given))
    return len(tensors) > 1 and tensors[0].dim() == 3 and tensors[0].shape[int(module.batch_first)] == 1


def _function(frame: FrameType) -> CodeType:
    """The function that runs; that around a comprehension."""
    while frame.f_code.co_name in _COMPREHENSIONS and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code


def _places(code: CodeType, line: int) -> tuple[str, str, str]:
    """The function's name, its first line, and the line."""
    file = relative(code.co_filename)
    return function_name(code), f"{file}:{code.co_firstlineno}", f"{file}:{line}"


def _facts(code: CodeType, line: int, module: nn.Module, loop: _Loop) -> SliceCallsFacts:
    norms = any(isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training for part in module.modules())
    return SliceCallsFacts(
        *_places(code, line),
        module=type(module).__name__,
        slices=loop.least,
        calls=loop.by_step[-1],
        norms=norms,
    )

"""Finds loops that call like modules on the same input, as one module for each head of attention: one could do for all.

In warm-up steps, calls that one line of the script makes directly. Each call of a loop must be of another module of one
class and of one shape of parameters, with the very same tensors.
"""

from __future__ import annotations

import contextlib
import weakref
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from torch import nn

from dptune.capture.injected.observe.call_contents import tensors_in

LEAST_MODULES = 4  # of a loop
_MOST = 64  # places that are looked at


@dataclass
class Siblings:
    """The calls of one line: `like` is what those of the loop that runs have in common, `modules` which these are."""

    kind: type
    shapes: list[tuple[int, ...]]
    fits: bool = True
    like: tuple[Any, ...] = ()
    given: list[weakref.ref[Any]] = field(default_factory=list)
    modules: set[int] = field(default_factory=set)
    least: int = 0  # modules of any loop so far
    calls: int = 0
    by_step: list[int] = field(default_factory=list)

    def ended(self) -> None:
        """No further call belongs to the loop that runs."""
        if self.modules:
            self.least = min(self.least or len(self.modules), len(self.modules))
            self.fits = self.fits and len(self.modules) >= LEAST_MODULES
        self.like, self.given, self.modules = (), [], set()

    def count(self, module: nn.Module, given: Any, after: int) -> None:
        """Another call of the line."""
        tensors = list(tensors_in(given))
        self.fits = self.fits and bool(tensors) and type(module) is self.kind and _shapes(module) == self.shapes
        like = (after, *((id(tensor), tensor._version) for tensor in tensors))
        alive = all(ref() is not None for ref in self.given)
        if like != self.like or not alive or id(module) in self.modules:
            self.ended()
            self.like, self.given = like, [weakref.ref(tensor) for tensor in tensors]
        self.modules.add(id(module))
        self.calls += 1


class SiblingCalls:
    """By line of the script."""

    def __init__(self) -> None:
        self.found: dict[tuple[CodeType, int], Siblings] = {}

    def entered(self, place: tuple[CodeType, int], module: nn.Module, given: Any, after: int) -> None:
        """A module is called there, after so many backward passes."""
        siblings = self.found.get(place)
        if siblings is None:
            if len(self.found) >= _MOST:
                return
            siblings = self.found[place] = Siblings(type(module), _shapes(module))
        if siblings.fits:
            with contextlib.suppress(Exception):  # arguments may be anything
                siblings.count(module, given, after)

    def ticked(self) -> None:
        """A step of the recording has ended."""
        for siblings in self.found.values():
            siblings.ended()
            siblings.by_step.append(siblings.calls)
            siblings.calls = 0

    def fitting(self) -> list[tuple[tuple[CodeType, int], Siblings]]:
        """The lines that did so in every step from the first on."""
        return [
            (place, siblings)
            for place, siblings in self.found.items()
            if siblings.fits and len(siblings.by_step) > 1 and min(siblings.by_step)
        ]


def _shapes(module: nn.Module) -> list[tuple[int, ...]]:
    return [tuple(parameter.shape) for parameter in module.parameters()]

"""Follows integer tensors with values that wrapped, until something reads these as numbers.

Tests whether a difference is zero, and operators on bits, are right on values that wrapped: borders by
`labels[1:] - labels[:-1] != 0`, checksums. So is a selection of the values that did not wrap:
`where(a > b, a - b, b - a)`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from dptune.capture.injected.observe.call_contents import tensors_in

_BITS = frozenset(
    (
        *("and", "or", "xor", "iand", "ior", "ixor", "rand", "ror", "rxor", "invert"),
        *("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"),
    )
)
_SHIFTS = frozenset(
    (
        *("rshift", "lshift", "irshift", "ilshift", "bitwise_right_shift", "bitwise_left_shift"),
        *("randint", "randint_like", "random"),  # all bits of these are random
    )
)
_TESTS = frozenset(("ne", "eq", "not_equal", "equal", "bool", "nonzero", "argwhere", "any", "all", "count_nonzero"))
_READERS = frozenset(("item", "tolist", "numpy", "array", "float", "int", "index", "format", "repr"))
_LOGICAL = ("logical_",)


@dataclass(eq=False)
class Wrapped:
    """Values of one result that wrapped: which ones, and what to do once they are read.

    `difference`: zero means equal, also where values wrapped; a product or a sum may wrap to zero.
    """

    bad: torch.Tensor
    difference: bool
    read: Callable[[], None] | None  # None once it was called


class IntegerUses:
    """The tensors that hold such values, and those whose bits matter."""

    def __init__(self, narrow: frozenset[Any]) -> None:
        self._narrow = narrow
        self._held: dict[int, tuple[weakref.ref[torch.Tensor], list[Wrapped]]] = {}
        self._bits: dict[int, weakref.ref[torch.Tensor]] = {}

    def hold(self, tensor: torch.Tensor, wrapped: Wrapped) -> None:
        """A result holds values that wrapped."""
        self._inherit(tensor, [wrapped])

    def has_bits(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is the result of a shift, or random: its lowest bits are as good as its value."""
        ref = self._bits.get(id(tensor))
        return ref is not None and ref() is tensor

    def used(self, call: tuple[str, Any, Any, Any]) -> None:
        """A call (name, arguments and result) was made, perhaps with such tensors."""
        name, args, kwargs, result = call
        name = name.strip("_")
        if name in _SHIFTS and isinstance(result, torch.Tensor):
            self._bits[id(result)] = weakref.ref(result)
        if not self._held or name in _BITS or name in _SHIFTS:
            return
        tests = name in _TESTS or name.startswith(_LOGICAL)
        held = [each for tensor in tensors_in((args, kwargs)) for each in self._of(tensor)]
        held = [each for each in held if not (tests and each.difference)]
        if not held:
            return
        made = [args[0]] if name == "setitem" else list(tensors_in(result))
        if name == "where" and len(args) == 3 and (left := self._selected(*args)) is not None:
            held = [each for each in held if each in left]
        elif any(tensor.dtype not in self._narrow for tensor in made) or (not made and (tests or name in _READERS)):
            for each in held:
                if each.read is not None:
                    each.read()
                    each.read = None
            return
        for tensor in made:
            self._inherit(tensor, held)

    def forget_dead(self) -> None:
        """Keep what is alive only."""
        self._held = {at: entry for at, entry in self._held.items() if entry[0]() is not None}
        self._bits = {at: ref for at, ref in self._bits.items() if ref() is not None}

    def _selected(self, chosen: torch.Tensor, *sides: Any) -> list[Wrapped] | None:
        """Which of them still have such a value once others are chosen; None where this cannot be seen."""
        left = []
        for side, kept in zip(sides, (chosen, ~chosen), strict=True):
            for each in self._of(side) if isinstance(side, torch.Tensor) else ():
                if each.bad.shape != chosen.shape:
                    return None
                if bool((each.bad & kept).any()):
                    left.append(each)
        return left

    def _of(self, tensor: torch.Tensor) -> Iterator[Wrapped]:
        ref, held = self._held.get(id(tensor), (None, []))
        if ref is not None and ref() is tensor:
            yield from (each for each in held if each.read is not None)

    def _inherit(self, tensor: torch.Tensor, held: list[Wrapped]) -> None:
        for each in (tensor, tensor._base):  # what a view changes, its tensor holds
            if each is not None:
                known = list(self._of(each))
                self._held[id(each)] = weakref.ref(each), known + [new for new in held if new not in known]

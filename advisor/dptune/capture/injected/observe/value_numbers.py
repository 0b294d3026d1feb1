"""Numbers for values: two tensors have the same number where the same operators made them of the same tensors.

The number of a tensor that no watched operator made belongs to this tensor object and its version: an in-place update,
as an optimizer makes, gives it a new one. The number of a result follows from the operator, the numbers of its inputs
and its plain arguments. What is drawn at random, and what depends on anything that cannot be compared, has a number of
its own. Updates through `.data` or NumPy leave the number as it was: who relies on it compares values.
"""

from __future__ import annotations

import itertools
import re
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch

_LEAVES = 64  # of nested arguments
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), torch.dtype, torch.device, torch.layout)
_RANDOM = re.compile(
    r"rand|normal|bernoulli|multinomial|dropout|poisson|exponential_|uniform_|geometric_|cauchy_|rrelu"
)


class ValueNumbers:
    """The numbers of the tensors that are alive; none is kept alive."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], int, int]] = {}  # by identity: version and number
        self._fresh = itertools.count()
        self.constants: set[int] = set()  # numbers that follow from plain values alone

    def number(self, operator: str, args: Any, kwargs: Any) -> int:
        """That of the results of a call, to be asked before it."""
        if _draws(operator, args, kwargs):
            return self._new()
        parts: list[Any] = [operator]
        constant = True
        for count, leaf in enumerate(_leaves((args, kwargs))):
            if count >= _LEAVES:
                return self._new()
            if isinstance(leaf, torch.Tensor):
                number = self.of(leaf)
                constant = constant and number in self.constants
                parts.append((torch.Tensor, number))
            elif isinstance(leaf, _PLAIN):
                parts.append((type(leaf), leaf))
            else:
                return self._new()
        number = hash(tuple(parts))
        if constant:
            self.constants.add(number)
        return number

    def of(self, tensor: torch.Tensor) -> int:
        """Its number, a new one where it is not known or has changed."""
        known = self._known.get(id(tensor))
        if known is not None and known[0]() is tensor and known[1] == tensor._version:
            return known[2]
        return self._keep(tensor, self._new())

    def made(self, results: Any, number: int) -> None:
        """What a call returned has this number; of several tensors, each one of its own that follows from it."""
        if isinstance(results, torch.Tensor):
            self._keep(results, number)
        elif isinstance(results, (tuple, list)):
            for at, result in enumerate(results):
                if isinstance(result, torch.Tensor):
                    part = self._keep(result, hash((number, at)))
                    if number in self.constants:
                        self.constants.add(part)

    def forget_dead(self) -> None:
        """Drop the numbers of tensors that are gone."""
        self._known = {key: known for key, known in self._known.items() if known[0]() is not None}

    def _keep(self, tensor: torch.Tensor, number: int) -> int:
        self._known[id(tensor)] = (weakref.ref(tensor), tensor._version, number)
        return number

    def _new(self) -> int:
        return hash(("a value of its own", next(self._fresh)))


def _draws(operator: str, args: Any, kwargs: Any) -> bool:
    """Whether it draws random numbers: dropout does not in evaluation mode, nor with probability zero."""
    if not _RANDOM.search(operator):
        return False
    if "dropout" not in operator:
        return True
    given = dict(zip(("input", "p", "training"), args, strict=False)) | dict(kwargs)
    return bool(given.get("training", given.get("train", True)) and given.get("p", True))


def _leaves(thing: Any) -> Iterator[Any]:
    if isinstance(thing, Mapping):
        for name, part in thing.items():
            yield str(name)
            yield from _leaves(part)
    elif isinstance(thing, (list, tuple)):
        yield len(thing)
        for part in thing:
            yield from _leaves(part)
    elif isinstance(thing, slice):
        yield from ("slice", *_leaves((thing.start, thing.stop, thing.step)))
    else:
        yield thing

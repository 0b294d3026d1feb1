"""Finds recurrent layers that start each batch with the state that they had after the previous batch.

In warm-up steps only, and in calls with gradients: states are compared by some of their values, so copies and detached
tensors count. Batches are those that the training thread draws. The state of one part of a batch may go on in the next
part, as in truncated backpropagation through time: only the first call after a batch was drawn is compared.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from dptune.capture.injected.observe.passes import is_captured, is_in_pass
from dptune.capture.injected.observe.places import Places, users_line
from dptune.capture.injected.observe.tensor_samples import differ, elements, is_readable
from dptune.capture.injected.observe.wrapped_operators import WrappedOperators
from dptune.runfile.carried_states import CarriedStateFacts

_LAYERS = (nn.LSTM, nn.GRU, nn.RNN, nn.LSTMCell, nn.GRUCell, nn.RNNCell)
_MODULES = 16  # that are watched
_CALLS = 20_000
_TENSORS = 2  # of a state


@dataclass
class _Watched:
    module: weakref.ref[Any]
    facts: CarriedStateFacts
    draws: int = -1  # batches that were drawn by its last call
    left: list[torch.Tensor] = field(default_factory=list)  # some values of the state that this call returned


class CarriedStates:
    """The calls of recurrent layers, and the batches that are drawn between them."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._calls_of = WrappedOperators(self._note)
        self._watched: dict[int, _Watched] = {}
        self._draws = self._calls = 0
        self._thread: int | None = None  # that draws batches
        self._facts: list[CarriedStateFacts] = []

    def begin(self) -> None:
        """Watch from now on, unless code is compiled."""
        if not self._places.compiled:
            for layer in _LAYERS:
                self._calls_of.wrap(layer, "forward")

    def drawn(self, batch: Any) -> None:
        """A batch was drawn."""
        self._draws += 1
        self._thread = threading.get_ident()

    def end(self) -> None:
        """Watch no more, and keep the findings."""
        self._calls_of.unwrap()
        found = [watched.facts for watched in self._watched.values() if watched.facts.batches]
        self._facts = found or self._facts
        self._watched = {}

    def facts(self) -> list[CarriedStateFacts]:
        """Those that start a batch with such a state."""
        return self._facts

    def _note(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        module = args[0]
        trains = module.training and torch.is_grad_enabled() and not is_in_pass() and not is_captured()
        if not trains or self._thread != threading.get_ident() or self._calls >= _CALLS:
            return
        self._calls += 1
        watched = self._watched.get(id(module))
        if watched is None or watched.module() is not module:
            if len(self._watched) >= _MODULES:
                return
            facts = CarriedStateFacts(type(module).__name__, users_line(sys._getframe(2)))
            watched = self._watched[id(module)] = _Watched(weakref.ref(module), facts)
        if watched.left and watched.draws != self._draws:
            given = _values([*args[2:3], kwargs.get("hx")])
            watched.facts.batches_seen += 1
            watched.facts.batches += _are_equal(given, watched.left)
        watched.draws = self._draws
        watched.left = _values([result[1]] if isinstance(module, nn.RNNBase) else [result])


def _values(state: Any) -> list[torch.Tensor]:
    """Some values of each of its tensors."""
    return [elements(tensor) for tensor in _tensors(state) if is_readable(tensor)][:_TENSORS]


def _tensors(state: Any) -> Iterator[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, (list, tuple)):
        for part in state:
            yield from _tensors(part)


def _are_equal(given: list[torch.Tensor], left: list[torch.Tensor]) -> bool:
    """Whether these are the same values, and not all zero."""
    if len(given) != len(left) or not any(bool(values.any()) for values in left):
        return False
    return not any(bool(differ(*pair)) for pair in zip(given, left, strict=True))

"""Gradients that the loss of another optimizer leaves, for example a generator's in its critic, until the next step.

A loss that trains a generator goes through the critic and leaves gradients there. The generator's optimizer steps; if
they are not cleared by the next backward pass, the critic's step applies them as well. Networks that run before those
that the other optimizer trains, as an encoder that two losses share, do not count: both losses may be meant for them.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

from dptune.capture.injected.observe.used_gradients import UsedGradients

_NODES = 5_000  # of a graph that are looked at

Parameters = Sequence["weakref.ref[Any]"]


class OtherLosses:
    """Of one optimizer, by a sample of its parameters."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self.where: str | None = None  # the last of these
        self._left: UsedGradients | None = None
        self._followed: list[UsedGradients] = []

    def left_by(self, other: OtherLosses, used_at: dict[int, int], where: str | None) -> None:
        """Another optimizer has stepped, after a pass in which parameters were used at these places in the forward."""
        here, there = ([used_at.get(id(ref()), 0) for ref in each.parameters] for each in (self, other))
        if here and there and min(there) > 0 and min(here) > max(there):
            self._left, self.where = UsedGradients(self.parameters), where

    def follow(self, follow: Callable[[UsedGradients], None]) -> None:
        """A backward pass begins or has ended."""
        if self._left is None:
            return
        try:
            follow(self._left)
        except Exception:  # gradients may be any kind of tensor
            self._left = None

    def before_step(self) -> None:
        """The optimizer itself is about to step."""
        if self._left is not None:
            self._left.before_step()
            self._followed.append(self._left)
            self._left = None

    def count(self, modules: Callable[[], Collection[int]]) -> int:
        """The steps that applied such gradients; reads what was compared on the device."""
        return sum(left.has_old(modules) and not left.is_cleared() for left in self._followed)


def used_at(roots: Any) -> dict[int, int]:
    """By parameter that a pass from these tensors reaches, when the forward pass first used it, from 1 on."""
    tensors = roots if isinstance(roots, (list, tuple)) else [roots]
    waiting = deque(node for tensor in tensors if (node := tensor.grad_fn) is not None)
    seen, found = set(waiting), dict[int, int]()
    while waiting and len(seen) < _NODES:
        node = waiting.popleft()
        for following, _ in node.next_functions:
            leaf = getattr(following, "variable", None)
            if leaf is not None:
                found[id(leaf)] = min(1 + node._sequence_nr(), found.get(id(leaf), 1 + node._sequence_nr()))
            elif following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return found

"""Reads the graphs of the first backward passes; where they show something, torch notes the lines of forward passes."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from typing import Any, Generic, Protocol, TypeVar

import torch

from dptune.capture.injected.observe.loss_graph import consumers
from dptune.capture.injected.observe.passes import is_captured
from dptune.capture.injected.observe.places import Places

_PASSES = 16  # that are read
_WHOLE = 6  # whose whole graph is read
_NODES = 50_000  # of a whole graph: embeddings are at its far end
_NOTED = 4  # whose lines are noted


class FoundInGraph(Protocol):
    """What a graph showed: how many passes were read, and the line in the script."""

    passes_seen: int
    where: str | None


_Facts = TypeVar("_Facts", bound=FoundInGraph)


class GraphPasses(ABC, Generic[_Facts]):
    """The backward passes of warm-up steps. `_found`: what their graphs showed, by kind."""

    def __init__(self) -> None:
        self._watching = self._noting_lines = False
        self._passes = self._noted = 0
        self._found: dict[Any, _Facts] = {}

    def begin(self) -> None:
        """Read the backward passes from now on."""
        self._watching = True

    def end(self) -> None:
        """Read no more of them."""
        self._watching = False
        self._stop_noting_lines()

    def facts(self) -> list[_Facts]:
        """What was found, a record for each kind."""
        for facts in self._found.values():
            facts.passes_seen = self._passes
        return list(self._found.values())

    def before_pass(self, roots: Any) -> None:
        """A backward pass starts from these tensors."""
        self._stop_noting_lines()
        if not self._watching or self._passes >= _PASSES:
            return
        with contextlib.suppress(Exception):  # a graph may hold functions of any kind
            self._passes += 1
            self._read(roots)

    def after_pass(self) -> None:
        """It has ended."""
        if not self._watching or self._noted >= _NOTED or torch.is_anomaly_enabled():
            return
        if any(facts.where is None for facts in self._found.values()):
            self._noted += 1
            self._noting_lines = True
            torch.autograd.set_detect_anomaly(True, check_nan=False)

    @abstractmethod
    def _read(self, roots: Any) -> None:
        """Add what the graph below these tensors shows to what was found."""

    def _stop_noting_lines(self) -> None:
        if self._noting_lines:
            self._noting_lines = False
            torch.autograd.set_detect_anomaly(False)


class WholeGraphs(GraphPasses[_Facts]):
    """Reads the whole graphs of the first backward passes, but none of code that torch.compile hides."""

    def __init__(self, places: Places) -> None:
        super().__init__()
        self._places = places

    def begin(self) -> None:
        """Read the backward passes from now on."""
        if not self._places.compiled:
            super().begin()

    def facts(self) -> list[_Facts]:
        """What was found, a record for each kind."""
        for facts in (found := super().facts()):
            facts.passes_seen = min(facts.passes_seen, _WHOLE)
        return found

    def _read(self, roots: Any) -> None:
        if self._passes > _WHOLE or is_captured():
            return
        tensors = [roots] if isinstance(roots, torch.Tensor) else list(roots)
        with torch.no_grad():
            self._read_graph(consumers((tensor.grad_fn for tensor in tensors), _NODES))

    @abstractmethod
    def _read_graph(self, readers: dict[Any, list[Any]]) -> None:
        """Add what a graph shows: its nodes, those nearest to the roots first, each with what reads its result."""

"""How many rows of an embedding table's dense gradient are nonzero.

Checked in two warm-up steps after an optimizer has used the gradient: the largest value of each row, in one pass over
the gradient. Other uses of the table also show in it, for example weights tied to an output layer.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dptune.capture.injected.observe.module_paths import parents, path_of
from dptune.capture.injected.observe.places import Places
from dptune.runfile.dense_tables import DenseTableFacts

_KINDS = (nn.Embedding, nn.EmbeddingBag)
_CHECKS = 2  # steps in which a gradient is checked
_LEAST_BYTES = 2**18  # of a gradient; a smaller one costs nothing
_TABLES = 64  # checked at most
_NAMED = 32  # recorded at most, the largest first


@dataclass
class _Table:
    facts: DenseTableFacts
    checks: int = 0


class DenseTables:
    """The tables that optimizers update, with the nonzero rows of their gradients."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._watching = False
        self._tables: dict[int, _Table] = {}  # by module
        self._facts: list[DenseTableFacts] = []

    def install(self) -> None:
        """Record where tables are created."""
        for kind in _KINDS:
            self._places.watch(kind)

    def begin(self) -> None:
        """Start to check gradients."""
        self._watching = True

    def end(self) -> None:
        """Stop, and find the tables' paths in the model."""
        self._watching = False
        with contextlib.suppress(Exception):  # modules may be anything
            self._facts = self._found()
        self._tables = {}

    def facts(self) -> list[DenseTableFacts]:
        """The largest tables first."""
        return self._facts

    def stepped(self, optimizer: Any) -> None:
        """Check the gradients of an optimizer that has just stepped."""
        if not self._watching:
            return
        with contextlib.suppress(Exception):
            updated = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
            for module in self._alive():
                if id(module.weight) in updated:
                    self._check(module, type(optimizer).__name__)

    def _check(self, module: Any, optimizer: str) -> None:
        gradient = module.weight.grad
        if type(gradient) is not torch.Tensor or gradient.layout is not torch.strided or gradient.dim() != 2:
            return  # none, sparse, or sharded
        if gradient.numel() * gradient.element_size() < _LEAST_BYTES:
            return
        table = self._tables.get(id(module))
        if table is None:
            if len(self._tables) >= _TABLES:
                return
            rows, columns = gradient.shape
            facts = DenseTableFacts("", rows, columns, 0, gradient.element_size(), optimizer)
            table = self._tables[id(module)] = _Table(facts)
        if table.checks < _CHECKS:
            table.checks += 1
            with torch.no_grad():
                used = int(torch.count_nonzero(torch.linalg.vector_norm(gradient, float("inf"), dim=1)))
            table.facts.used_rows = max(table.facts.used_rows, used)

    def _alive(self) -> list[Any]:
        return [module for kind in _KINDS for module in self._places.alive(kind) if not module.sparse]

    def _found(self) -> list[DenseTableFacts]:
        known = parents() if self._tables else {}
        found = []
        for module in self._alive():
            table = self._tables.get(id(module))
            if table is not None:
                table.facts.module, table.facts.where = path_of(module, known), self._places.line(module)
                found.append(table.facts)
        return sorted(found, key=lambda table_facts: -table_facts.gradient_bytes)[:_NAMED]

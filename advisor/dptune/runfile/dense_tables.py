"""Embedding tables whose gradients are dense although few of their rows are nonzero."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class DenseTableFacts:
    """One `nn.Embedding` or `nn.EmbeddingBag` with `sparse=False`, as an optimizer found its gradient in warm-up steps.

    `used_rows`: the largest number of nonzero rows in the inspected steps; gradients that DDP has averaged contain the
    rows of all ranks. `module` is its path in the model, `optimizer` the class that updates it.
    """

    module: str
    rows: int
    columns: int
    used_rows: int
    element_bytes: int = 4
    optimizer: str = ""
    where: str | None = None

    @property
    def gradient_bytes(self) -> int:
        """The size of its gradient, which DDP sends."""
        return self.rows * self.columns * self.element_bytes

    @property
    def unused_share(self) -> float:
        """The share of its rows that a step does not use."""
        return 1 - self.used_rows / self.rows if self.rows else 0.0

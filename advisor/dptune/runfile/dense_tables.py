"""Embedding tables whose gradients are dense, though few of their rows hold anything."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class DenseTableFacts:
    """One `nn.Embedding` or `nn.EmbeddingBag` with `sparse=False`, as an optimizer found its gradient in warm-up steps.

    `used_rows`: rows of the gradient that are not zero, the most of the steps that were looked at; gradients that DDP
    has averaged hold the rows of all ranks. `module` is its path in the model, `optimizer` the class that updates it.
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
        """What its gradient holds, and DDP sends."""
        return self.rows * self.columns * self.element_bytes

    @property
    def unused_share(self) -> float:
        """The part of its rows that a step leaves alone."""
        return 1 - self.used_rows / self.rows if self.rows else 0.0

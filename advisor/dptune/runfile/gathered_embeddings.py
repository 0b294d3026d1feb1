"""Embeddings of all ranks that losses use, gathered without gradients."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class GatheredEmbeddingFacts:
    """A line of the script that gathers what requires gradients, and whose result reaches a loss without them.

    `where`: the function and line, `through` the function of a library that is called there (`accelerate.gather`),
    empty where the script calls `function` of `torch.distributed` itself. `rows` of all ranks, each of `width` numbers,
    `local_rows` of this rank. `passes` of `passes_seen` backward passes use them.
    """

    where: str | None
    function: str
    through: str = ""
    rows: int = 0
    local_rows: int = 0
    width: int = 0
    passes: int = 0
    passes_seen: int = 0

    @property
    def ranks(self) -> int:
        """How many ranks they are of; 0 where that is not known."""
        return self.rows // self.local_rows if self.local_rows > 0 else 0

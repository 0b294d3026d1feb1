"""Self-attention of language models that attends to the tokens to predict."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class CausalMaskFacts:
    """A model trained to predict the next token, none of whose `layers` of self-attention hides the next position.

    `passes`: backward passes with such a graph, of `passes_seen` that were read; none had causal self-attention over
    the ids. `positions` of a sequence, and `targets` that are the next input and differ from the input at their
    position. `seen_share`: of these targets, the least share over layers that is attended to; `later_share`: of the
    attention weight, on later positions. `where`: the line that calls the first layer.
    """

    where: str | None = None
    passes: int = 0
    layers: int = 0
    positions: int = 0
    targets: int = 0
    seen_share: float = 0.0
    later_share: float = 0.0
    passes_seen: int = 0

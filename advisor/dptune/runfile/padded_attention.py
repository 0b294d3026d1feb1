"""Attention of sequences of tokens to their padding."""

from __future__ import annotations

from dataclasses import dataclass

SELF, CROSS = "self", "cross"  # attention between the positions of one sequence, and from other queries


@dataclass
class PaddedAttentionFacts:
    """Embedded token ids whose rows end, or start, with padding, to which all `layers` of attention over them attend.

    `kind` is `self` or `cross`. `filler` is the id of the padding, `padding_idx` whether the embedding names it. Of the
    sequences with most padding: `padding_share`, the share of their positions that is padding, and `weight_share`, of
    the weight with which the positions before the padding attend, the least over layers. `passes`: backward passes with
    that, of `passes_seen` that were read. `certain`: the embedding, masks of the script, or lengths that differ between
    passes show that the filler is padding. `left`: it is at the start of rows. `where`: the line that calls the layer
    nearest to the loss.
    """

    kind: str = SELF
    where: str | None = None
    layers: int = 0
    filler: int = 0
    padding_idx: bool = False
    certain: bool = False
    left: bool = False
    positions: int = 0
    padding_share: float = 0.0
    weight_share: float = 0.0
    passes: int = 0
    passes_seen: int = 0

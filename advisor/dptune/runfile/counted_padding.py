"""Positions of padding that a loss counts as targets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class CountedPaddingFacts:
    """Of the labels of one model, or of the targets of one loss, those that are padding and are not ignored.

    `shown_by`: `attention_mask` (the model's own input masks the position), `pad_token_id` (the label is the padding
    token of the model's configuration) or `padding_idx` (that of an embedding with as many rows as the loss has
    classes). `targets` is the number that the loss counts, in `passes`.
    """

    shown_by: str
    model: str
    targets: int = 0
    padding: int = 0
    passes: int = 0
    pad: int | None = None

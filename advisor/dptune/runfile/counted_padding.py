"""Padding that a loss counts as targets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class CountedPaddingFacts:
    """The labels of one model, or the targets of one loss, that are padding and not ignored.

    `shown_by`: `attention_mask` (the model's own input masks the position), `pad_token_id` (the label is the padding
    token of the model's configuration), `padding_idx` (that of an embedding with as many rows as the loss has classes)
    or `place` (the class that all targets have where an embedding reads its `padding_idx`, and no others). `targets`:
    how many targets the loss counts in all `passes`; `pad`: the padding token or class, if known.
    """

    shown_by: str
    model: str
    targets: int = 0
    padding: int = 0
    passes: int = 0
    pad: int | None = None

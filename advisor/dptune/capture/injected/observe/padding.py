"""How much of the batches of a loader is padding that no sample of the batch needs.

Looked at in the first batches of each loader, on tensors of integers of two dimensions: token ids, or an attention
mask. The columns at the end in which all rows have the same value, that of the padding, could be left out. A row must
have its padding at its end only: a matrix of counts is not taken for text, nor is a causal mask.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from dptune.runfile.padding import PaddingFacts

_BATCHES = 32  # that are looked at, of each loader
_LEAST_COLUMNS = 16
_LEAST_ROWS = 2
_MOST_ELEMENTS = 4_000_000


class Padding:
    """Sums by loader: by the identity of the sampler that its batches are drawn with."""

    def __init__(self) -> None:
        self._found: dict[int, PaddingFacts] = {}
        self._looked: dict[int, int] = {}

    def note(self, sampler: int, batch: Any) -> None:
        """Look at a batch."""
        looked = self._looked.get(sampler, 0)
        if looked >= _BATCHES:
            return
        self._looked[sampler] = looked + 1
        with contextlib.suppress(Exception):  # a batch may be anything
            sizes = next((sizes for tensor in _tensors(batch) if (sizes := _sizes(tensor))), None)
            if sizes is None:
                return
            columns, longest, tokens = sizes
            found = self._found.setdefault(sampler, PaddingFacts())
            found.batches += 1
            found.columns += columns
            found.longest_columns += longest
            found.filled_share += (tokens / columns - found.filled_share) / found.batches

    def facts(self, sampler: int) -> PaddingFacts | None:
        """What was seen of the loader with that sampler; None where no batch has padding at the ends of its rows."""
        return self._found.get(sampler)


def _tensors(batch: Any) -> Iterator[torch.Tensor]:
    """A batch's tensors, an attention mask first."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        names = sorted(batch, key=lambda name: "mask" not in str(name))
        yield from (batch[name] for name in names if isinstance(batch[name], torch.Tensor))
    elif isinstance(batch, (list, tuple)):
        for part in batch:
            yield from _tensors(part)


def _sizes(rows: torch.Tensor) -> tuple[int, int, float] | None:
    """Columns, columns of the longest row and of the mean row; None of a tensor whose rows do not end in padding."""
    if rows.dim() != 2 or rows.is_floating_point() or rows.is_complex() or rows.device.type != "cpu":
        return None
    count, columns = rows.shape
    if count < _LEAST_ROWS or columns < _LEAST_COLUMNS or rows.numel() > _MOST_ELEMENTS:
        return None
    filled = rows != rows[:, -1].mode().values  # most samples are shorter than the longest one
    lengths = filled.sum(1)
    ends = torch.where(filled, torch.arange(1, columns + 1), 0).amax(1)
    if not torch.equal(lengths, ends) or int(lengths.max()) == 0 or _is_causal(lengths):
        return None
    return columns, int(lengths.max()), float(lengths.float().mean())


def _is_causal(lengths: torch.Tensor) -> bool:
    """Whether each row is one longer than the row before, as in a causal mask."""
    return len(lengths) > 2 and bool((lengths.diff() == 1).all())

"""Which elements of a batch's rows are padding, from the values of its tensors.

Token ids, in rows that all end (or all start) with the same value, and masks of them. Which value of a mask marks
padding depends on the library that reads it, so a mask counts only with a tensor of the batch that is constant there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

_LEAST_COLUMNS = 16
_LEAST_ROWS = 2
_MOST_ELEMENTS = 4_000_000
_LEAST_LENGTH = 2  # of the longest padding of ids: all rows may start or end with the same token
_LEAST_PADDING = 0.05  # of the elements of a batch: from here its value is known as the padding of batches without any


@dataclass(frozen=True)
class PaddedRows:
    """A tensor whose rows end or start with padding, and that value; `lengths` are those without the padding.

    `inputs` are the tensors that a model reads where the padding is: the ids themselves, or what a mask belongs to.
    """

    lengths: torch.Tensor
    columns: int
    left: bool
    filler: int
    inputs: tuple[torch.Tensor, ...]

    @property
    def padding(self) -> torch.Tensor:
        """Whether each element is padding."""
        return _padding(self.lengths, self.columns, self.left)

    @property
    def shows_filler(self) -> bool:
        """Whether enough of the batch is padding to know its value."""
        return int(self.lengths.sum()) <= (1 - _LEAST_PADDING) * len(self.lengths) * self.columns


def tensors(batch: Any, at: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """A batch's tensors, each with its place: masks first, because ids may contain the value of the padding."""
    if isinstance(batch, torch.Tensor):
        yield at, batch
    elif isinstance(batch, Mapping):
        names = sorted(batch, key=lambda name: "mask" not in str(name))
        yield from ((f"{at}.{name}", batch[name]) for name in names if isinstance(batch[name], torch.Tensor))
    elif isinstance(batch, (list, tuple)):
        for number, part in enumerate(batch):
            yield from tensors(part, f"{at}.{number}")


def padded_rows(rows: torch.Tensor, batch: Sequence[torch.Tensor], filler: int | None = None) -> PaddedRows | None:
    """The padding of these rows; None of a tensor that is not padded, or where another of the batch contradicts that.

    `filler`: the value of the padding in earlier batches; where this one has none of it, its rows are full.
    """
    if rows.dim() != 2 or rows.is_floating_point() or rows.is_complex() or rows.device.type != "cpu":
        return None
    count, columns = rows.shape
    if count < _LEAST_ROWS or columns < _LEAST_COLUMNS or rows.numel() > _MOST_ELEMENTS:
        return None
    beside = [tensor for tensor in batch if tensor is not rows and _is_beside(tensor, rows)]
    found = _of_mask(rows, beside) if _is_mask(rows) else _of_ids(rows, beside)
    if found is None and filler is not None and not bool((rows == filler).any()):
        return PaddedRows(torch.full((count,), columns), columns, False, filler, (rows,))
    return found


def _of_ids(rows: torch.Tensor, beside: Sequence[torch.Tensor]) -> PaddedRows | None:
    """The side with more padding; most samples are shorter than the longest one."""
    found = [
        PaddedRows(lengths, rows.shape[1], left, filler, (rows,))
        for left in (False, True)
        for filler in (int(rows[:, 0 if left else -1].mode().values),)
        if (lengths := _lengths(rows, filler, left)) is not None and rows.shape[1] - int(lengths.min()) >= _LEAST_LENGTH
    ]
    found = [padded for padded in found if all(_is_constant(other, padded.padding) is not False for other in beside)]
    return min(found, key=lambda padded: int(padded.lengths.sum()), default=None)


def _of_mask(rows: torch.Tensor, beside: Sequence[torch.Tensor]) -> PaddedRows | None:
    """With the value, and on the side, where another tensor is constant."""
    for filler in (0, 1):
        for left in (False, True):
            lengths = _lengths(rows, filler, left)
            if lengths is None:
                continue
            padding = _padding(lengths, rows.shape[1], left)
            others = [(other, _is_constant(other, padding)) for other in beside if not _is_mask(other)]
            inputs = tuple(other for other, constant in others if constant)
            if inputs and all(constant is not False for _, constant in others):
                return PaddedRows(lengths, rows.shape[1], left, filler, inputs)
    return None


def _lengths(rows: torch.Tensor, filler: int, left: bool) -> torch.Tensor | None:
    """Of each row without this value at its end or, if `left`, at its start; None if it has the value elsewhere."""
    filled = rows != filler
    if left:
        filled = filled.flip(1)
    lengths = filled.sum(1)
    ends = torch.where(filled, torch.arange(1, rows.shape[1] + 1), 0).amax(1)
    if not torch.equal(lengths, ends) or int(lengths.max()) == 0 or _is_causal(lengths):
        return None
    return lengths


def _is_causal(lengths: torch.Tensor) -> bool:
    """Whether each row is one longer, or shorter, than the row before, as in a causal mask."""
    steps = lengths.diff()
    return len(lengths) > 2 and (bool((steps == 1).all()) or bool((steps == -1).all()))


def _padding(lengths: torch.Tensor, columns: int, left: bool) -> torch.Tensor:
    padding = torch.arange(columns) >= lengths[:, None]
    return padding.flip(1) if left else padding


def _is_mask(tensor: torch.Tensor) -> bool:
    if tensor.dtype == torch.bool:
        return True
    return not tensor.is_floating_point() and bool(((tensor == 0) | (tensor == 1)).all())


def _is_beside(tensor: torch.Tensor, rows: torch.Tensor) -> bool:
    """Whether it has a value, or a vector, for each element of the rows."""
    if tensor.dim() < 2 or tensor.device.type != "cpu" or tensor.numel() > _MOST_ELEMENTS:
        return False
    count, columns = rows.shape
    over_time = tensor.shape[1:2] if tensor.dim() != 3 else tensor.shape[1:]
    return tensor.shape[0] == count and columns in over_time


def _is_constant(tensor: torch.Tensor, padding: torch.Tensor) -> bool | None:
    """Whether its values where the padding is are the same for all; None if all of its rows are the same."""
    if torch.equal(tensor, tensor[:1].expand_as(tensor)):
        return None  # position numbers
    values = tensor if tensor.shape[1] == padding.shape[1] else tensor.movedim(-1, 1)
    inside = values[padding]
    return bool((inside == inside[:1]).all())

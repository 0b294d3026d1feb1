"""Whether the rows of a module's inputs and outputs repeat: each k times in a row, or all of them k times over.

`repeat_interleave`, `tile`, and `expand` before a reshape make such inputs. A few values of each row are kept until the
step ends, and compared then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

_LEAST_ROWS = 8
_LEAST_DIFFERENT = 4  # rows; fewer may follow a pattern by chance, as labels do
_MOST_ROWS = 4096
_COMPARED = 32  # values of a row, about


@dataclass
class Rows:
    """Some values of each row of the tensors of a call, all of which have the same number of rows."""

    count: int
    values: list[torch.Tensor]

    def repeats(self) -> int:
        """How often each row occurs, if all occur as often and in a regular order; else 1."""
        values = torch.cat([part.cpu().double() for part in self.values], 1)
        if values.isnan().any():
            return 1
        alike = (values == values[0]).all(1)
        run = int(alike.logical_not().nonzero()[0]) if not alike.all() else self.count
        period = int(alike[1:].nonzero()[0]) + 1 if alike[1:].any() else self.count
        for shape, grouped in ((-1, run), 1), ((-1, period), 0):
            if self.count % shape[1]:
                continue
            groups = values.reshape(*shape, values.shape[1])
            times = groups.shape[grouped]
            first = groups.narrow(grouped, 0, 1)
            if times > 1 and self.count // times >= _LEAST_DIFFERENT and bool((groups == first).all()):
                return times
        return 1


def rows_of(*parts: Any) -> Rows | None:
    """None without a tensor, where tensors differ in their rows, or where there are too few or too many of these."""
    tensors = list(_tensors(parts))
    counts = {tensor.shape[0] for tensor in tensors}
    if len(counts) != 1 or not _LEAST_ROWS <= (count := counts.pop()) <= _MOST_ROWS:
        return None
    return Rows(count, [_values(tensor) for tensor in tensors])


def _tensors(thing: Any) -> Iterator[torch.Tensor]:
    """All but single numbers."""
    if isinstance(thing, Mapping):
        thing = list(thing.values())
    if isinstance(thing, (list, tuple)):
        for part in thing:
            yield from _tensors(part)
    elif type(thing) in (torch.Tensor, torch.nn.Parameter) and thing.dim():
        yield thing


def _values(tensor: torch.Tensor) -> torch.Tensor:
    """Some values of each row, spread over all other dimensions; a large tensor is not copied."""
    plain = tensor.detach()
    most = max(1, int(_COMPARED ** (1 / max(1, plain.dim() - 1))))
    spread = (slice(None, None, max(1, -(-size // most))) for size in plain.shape[1:])
    return plain[(slice(None), *spread)].reshape(len(plain), -1).clone()

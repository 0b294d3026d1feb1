"""Parameters of a DDP module that are updated with gradients that DDP does not average."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isclose, isfinite
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dptune.runfile.facts import Facts

_ROUNDING = 1e-6


@dataclass
class UnaveragedFacts:
    """Parameters that did not require gradients, or did not exist, when DDP wrapped the module, and that an optimizer
    has updated since.

    `where`: the line that wraps the module; `names`: some of the parameters; `unfrozen_where`: the script's last call
    of `requires_grad_()` on a module, as `function (file:line)`, or the only line of its source that unfreezes
    parameters one by one; None where that is not known. `sums` are of some
    of the parameters after optimizer step `sums_step`: equal on ranks that hold the same weights.
    """

    module: str
    where: str | None = None
    tensors: int = 0
    parameters: int = 0
    size_bytes: int = 0
    names: list[str] = field(default_factory=list)
    unfrozen_where: str | None = None
    sums: list[float] = field(default_factory=list)
    sums_step: int = 0


def unaveraged_agree(ranks: Sequence[Facts]) -> bool | None:
    """Whether the ranks hold the same values of these parameters all the same; None if not known."""
    found = [rank.unaveraged[0] for rank in ranks if rank.unaveraged]
    if (
        len(found) < 2
        or len(found) != len(ranks)
        or len({(unaveraged.sums_step, len(unaveraged.sums)) for unaveraged in found}) > 1
    ):
        return None
    if not found[0].sums or not all(isfinite(total) for unaveraged in found for total in unaveraged.sums):
        return None
    pairs = [pair for unaveraged in found for pair in zip(found[0].sums, unaveraged.sums, strict=True)]
    return all(isclose(a, b, rel_tol=_ROUNDING, abs_tol=_ROUNDING) for a, b in pairs)

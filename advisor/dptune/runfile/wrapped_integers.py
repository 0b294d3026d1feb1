"""Arithmetic of narrow integer tensors whose results wrap around."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class WrappedIntegerFacts:
    """A line of the script that computes with two tensors of a narrow integer dtype, or converts numbers to one.

    `where` is the line, `function` the function it is in, `operator` is `add`, `sub`, `mul` or
    `convert`, and `dtype` that of the result. Of `values` that were computed a second time in int64, `wrapped` differ
    from the result.
    """

    where: str
    function: str = ""
    operator: str = ""
    dtype: str = ""
    values: int = 0
    wrapped: int = 0

    @property
    def share(self) -> float:
        """The part of the results that wrapped around."""
        return self.wrapped / self.values if 0 < self.wrapped <= self.values else 0.0

"""What a function does with the norms of tensors that it computes one by one, by the order of its operators.

A total norm is a norm or a sum of a stack of these norms. Where a tensor is scaled before the next norm is computed, or
the norms are not stacked, each may be used for its own tensor.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median_low

NORMS = frozenset({"norm", "linalg_norm", "linalg_vector_norm"})
_STACKS = frozenset({"stack", "cat"})
_SQUARES = frozenset({"square", "pow"})
_SCALES = frozenset({"mul_", "div_", "_foreach_mul_", "_foreach_div_"})
_PASSING = frozenset({"to", "_to_copy", "detach", "view", "reshape", "unsqueeze", "copy_"})  # no value changes


@dataclass(frozen=True)
class NormUse:
    """How many norms make one total norm, 0 where that is not seen, and whether tensors are scaled after it."""

    combined: int = 0
    scaled: bool = False


def norm_use(operators: Iterable[str]) -> NormUse:
    """By the names of the operators that a function calls, in their order, in one step or several."""
    single, computed, totals, scaled = 0, 0, list[int](), False
    stacked = after_total = False
    for name in (operator.removeprefix("aten::") for operator in operators):
        if stacked and (name in NORMS or name == "sum"):
            totals.append(single)
            single, after_total = 0, True
        elif name in NORMS:
            single, computed, after_total = single + 1, computed + 1, False
        elif name in _SCALES and after_total:
            scaled = True
        elif name in _SCALES:
            single = 0  # it changes tensors between norms
        stacked = name in _STACKS or (stacked and name in _SQUARES | _PASSING)
    if not totals or sum(totals) < computed:
        return NormUse()
    return NormUse(median_low(totals), scaled)

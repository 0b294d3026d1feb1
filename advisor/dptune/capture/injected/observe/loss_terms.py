"""The terms that a loss sums up, each with the constants that it is multiplied by, from the autograd graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from dptune.capture.injected.observe.loss_masks import readable

_HOPS = 16  # from the root of a pass to the last factor
_PRODUCT, _QUOTIENT = "MulBackward", "DivBackward"
_SUMS = ("AddBackward", "SubBackward", "StackBackward", "CatBackward")
_SAME = ("MeanBackward", "SumBackward", "ToCopyBackward", "ViewBackward", "SqueezeBackward", "UnsqueezeBackward")

Factors = list[tuple[torch.Tensor, int]]  # each constant with its power


def terms(node: Any, ends: tuple[str, ...] = (), hops: int = _HOPS) -> Iterator[tuple[Factors, Any]]:
    """The constants between a node and each term of the loss that it sums up, with the node of the term.

    `ends`: names of nodes that end a term where the constants would go on.
    """
    inputs = [following for following, _ in node.next_functions if following is not None]
    name = node.name()
    own = constants(node)
    if not hops or name.startswith(ends or ("?",)):
        yield own, node
    elif name.startswith(_SUMS) and inputs:
        for following in inputs:
            yield from terms(following, ends, hops - 1)
    elif len(inputs) == 1 and (own or name.startswith(_SAME)):
        for factors, term in terms(inputs[0], ends, hops - 1):
            yield own + factors, term
    else:
        yield own, node


def constants(node: Any) -> Factors:
    """The number by which a node multiplies; none where it multiplies by something that is computed, or by many."""
    name = node.name()
    if not name.startswith((_PRODUCT, _QUOTIENT)):
        return []
    if len(node.next_functions) == 1:  # by a number, as ATen does for label smoothing
        return [(torch.tensor(node._saved_other), -1 if name.startswith(_QUOTIENT) else 1)]
    (first, _), (second, _) = node.next_functions
    if first is not None and second is not None:
        return []
    saved = "other" if second is None else "self"
    if (saved == "self" and name.startswith(_QUOTIENT)) or not readable(node, saved):
        return []
    number = getattr(node, f"_saved_{saved}")
    if number is None or number.numel() != 1:
        return []
    return [(number.detach(), -1 if name.startswith(_QUOTIENT) else 1)]

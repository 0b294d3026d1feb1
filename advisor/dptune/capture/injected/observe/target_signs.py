"""Tells temporal-difference targets from residuals of equations, whose graphs are alike.

Both compare a value with `constant + factor * value`. A temporal-difference target has a mask of episode ends, selects
among actions, or discounts the later rows of one output. A residual of an equation, as in physics-informed networks,
multiplies the earlier rows, or computes both values at points that require gradients or are a constant apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from dptune.capture.injected.observe.loss_graph import shape_of, signed
from dptune.capture.injected.observe.loss_masks import readable

ENDS, ACTIONS, ORDER = "episode ends", "actions", "order"
_VIEWS = (
    *("ViewBackward", "UnsafeViewBackward", "ReshapeAliasBackward", "SqueezeBackward", "UnsqueezeBackward"),
    *("SelectBackward", "CloneBackward", "AliasBackward", "ToCopyBackward"),
)
_SELECTIONS = ("GatherBackward", "MaxBackward0", "AmaxBackward", "IndexBackward")
_SLICE = "SliceBackward"
# Products with weights: the place of their input among what they were given, and the name under which it is saved.
_PRODUCTS = {"AddmmBackward": (1, "mat1"), "MmBackward": (0, "self")}
_HOPS = 8  # views of a value
_LEAST_ROWS = 4  # of points: a few may be a constant apart by chance
_OF_SHIFT, _OF_VALUES = 1e-3, 1e-5  # how much of the shift, and of the points, is rounding of float32


def sign_of(value: Any, bootstrapped: Any, below: tuple[Sequence[Any], Sequence[Any]], ends: bool) -> str | None:
    """What shows a temporal-difference target: ENDS, ACTIONS, ORDER, or "" for nothing; None for a residual.

    `value` and `bootstrapped` are the functions that return the compared and the discounted value, `below` all that
    they depend on; `ends`: whether a mask drops the discounted value of some rows.
    """
    start, discounted = _start(value), _start(bootstrapped)
    if start is not None and discounted is not None and start != discounted:
        return ORDER if discounted > start else None
    if ends:
        return ENDS
    if any(node.name().startswith(_SELECTIONS) for side in (value, bootstrapped) for node in _views(side)):
        return ACTIONS
    rows = next(iter(shape_of(value)), 0)
    if any(_is_point(node, rows) for side in below for node in side):
        return None
    first, second = (list(_inputs(side)) for side in below)
    shifts = [_shift(*pair) for pair in zip(first, second, strict=True)] if len(first) == len(second) else []
    return None if shifts and None not in shifts and any(shifts) else ""


def _views(node: Any) -> Iterator[Any]:
    """From the function that returns a value down to the first that computes, which is included."""
    for _ in range(_HOPS):
        if node is None:
            return
        yield node
        if not node.name().startswith((*_VIEWS, _SLICE)):
            return
        node = node.next_functions[0][0]


def _start(node: Any) -> int | None:
    """The first row of a slice; None without one."""
    for view in _views(node):
        if view.name().startswith(_SLICE):
            start = signed(view._saved_start)
            return start if start >= 0 else start + int(view._saved_self_sym_sizes[view._saved_dim])
    return None


def _is_point(node: Any, rows: int) -> bool:
    """Whether it is a tensor with gradients and a row for each value, but no weight."""
    leaf = getattr(node, "variable", None)
    return leaf is not None and not isinstance(leaf, nn.Parameter) and leaf.dim() > 0 and len(leaf) == rows > 1


def _inputs(nodes: Sequence[Any]) -> Iterator[torch.Tensor]:
    """Data that a layer multiplies by its weights."""
    for node in nodes:
        for name, (place, saved) in _PRODUCTS.items():
            if node.name().startswith(name) and node.next_functions[place][0] is None and readable(node, saved):
                given = getattr(node, f"_saved_{saved}")
                if type(given) is torch.Tensor:
                    yield given.detach()


def _shift(first: torch.Tensor, second: torch.Tensor) -> bool | None:
    """Whether all rows of two tensors differ, by the same amounts; None where the amounts vary, or rows are few."""
    if first.shape != second.shape or len(first) < _LEAST_ROWS:
        return None
    apart = second.double() - first.double()
    largest = float(apart.abs().max())
    varies = float((apart.amax(0) - apart.amin(0)).max())
    if not varies <= _OF_SHIFT * largest + _OF_VALUES * float(first.abs().max()):
        return None
    return largest > 0

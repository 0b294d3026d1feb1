"""Operators that return a view of a tensor: they compute nothing, however large it is."""

from __future__ import annotations

# What only looks at a tensor in another way.
VIEWS = frozenset(
    "aten::" + name
    for name in (
        *("view", "reshape", "_unsafe_view", "t", "transpose", "permute", "unsqueeze", "squeeze", "expand", "flatten"),
        *("unflatten", "movedim", "swapaxes", "numpy_T", "mT", "alias", "detach", "as_strided", "expand_as", "view_as"),
        *("slice", "select", "narrow", "split", "chunk", "unbind", "is_nonzero", "result_type", "empty", "lift_fresh"),
    )
)

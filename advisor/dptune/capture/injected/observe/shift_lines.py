"""The lines of the script that shift labels, read from the source; nothing is run."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

from dptune.capture.injected.observe.batch_preparation import called_code, reader
from dptune.capture.injected.observe.places import users_place

_MOST = 4


def shift_lines(loader: Any) -> list[str]:
    """`file:line` of slices from the second position on in what reads and collates samples; empty without any."""
    found: list[str] = []
    for function in (reader(loader.dataset), loader.collate_fn):
        code = called_code(function)
        if code is None or users_place(code.co_filename, 1) is None:
            continue
        lines, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
        found += [users_place(code.co_filename, first + line - 1) or "" for line in sorted(_shifts(tree))]
    return list(dict.fromkeys(found))[:_MOST]


def _shifts(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript):
            parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            if any(isinstance(part, ast.Slice) and _is_one_more(part.lower) for part in parts[-1:]):
                yield node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "roll":
            yield node.lineno


def _is_one_more(begin: ast.expr | None) -> bool:
    """`1`, or `at + 1`."""
    if isinstance(begin, ast.BinOp) and isinstance(begin.op, ast.Add):
        return any(isinstance(side, ast.Constant) and side.value == 1 for side in (begin.left, begin.right))
    return isinstance(begin, ast.Constant) and begin.value == 1

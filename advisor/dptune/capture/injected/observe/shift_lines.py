"""The lines of the script that shift labels, read from the source; nothing is run."""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
from collections.abc import Iterator
from typing import Any

from dptune.capture.injected.observe.batch_preparation import called_code, reader
from dptune.capture.injected.observe.places import users_place
from dptune.capture.injected.observe.script_files import script_files

_MOST = 4
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_LOSSES = ("cross_entropy", "nll_loss", "CrossEntropyLoss", "NLLLoss")


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


def loss_shift_lines() -> list[str]:
    """`file:line` of such slices in the script's functions that compute a cross entropy; empty without any."""
    found = []
    for file in script_files():
        text = "".join(linecache.getlines(file))
        if not any(loss in text for loss in _LOSSES):
            continue
        functions = [node for node in ast.walk(ast.parse(text)) if _has_loss(node)]
        lines = sorted({line for function in functions for line in _shifts(function)})
        found += [users_place(file, line) or "" for line in lines]
    return found[:_MOST]


def _has_loss(node: ast.AST) -> bool:
    """Whether it is a function that calls a loss of torch by its name."""
    calls = [inner for inner in ast.walk(node) if isinstance(inner, ast.Call)] if isinstance(node, _FUNCTIONS) else []
    return any(ast.unparse(call.func).rpartition(".")[2] in _LOSSES for call in calls)


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

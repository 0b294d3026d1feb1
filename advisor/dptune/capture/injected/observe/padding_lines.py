"""The lines of the script that pad samples, and those that compute the length, read from the source; nothing is run."""

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

_FILLED = ("full", "zeros", "ones", "empty", "new_full", "new_zeros", "new_ones")  # with the shape first
_PADS = ("pad", "pad_sequence")  # with the length second, or without one
_TO_LONGEST = "max_length"  # the value of `padding` for which a tokenizer pads to its limit
_MOST = 4


def padding_lines(loader: Any) -> list[str]:
    """`file:line` of lines that pad what a loader draws, those that compute the length before; empty without any.

    Looked for in what collates, in what reads samples, and, as samples may be tokenized before, in calls of tokenizers.
    """
    found: list[str] = []
    for function in (loader.collate_fn, reader(loader.dataset)):
        code = called_code(function)
        if code is None or users_place(code.co_filename, 1) is None:
            continue
        lines, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
        found += [users_place(code.co_filename, first + line - 1) or "" for line in _lines(tree)]
    for file in () if found else script_files():
        limits = [_tokenizes(node) for node in ast.walk(ast.parse("".join(linecache.getlines(file))))]
        found += [users_place(file, limit.lineno) or "" for limit in limits if limit is not None]
    return list(dict.fromkeys(found))[:_MOST]


def _lines(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.expr):
            continue
        lengths = _lengths(node)
        if lengths is None:
            continue
        names = {part.id for length in lengths for part in ast.walk(length) if isinstance(part, ast.Name)}
        assignments = [assigned for assigned in ast.walk(tree) if isinstance(assigned, ast.Assign)]
        yield from (assigned.lineno for assigned in assignments if _assigns(assigned, names))
        yield node.lineno


def _lengths(node: ast.expr) -> list[ast.expr] | None:
    """What the length of a padded sample or batch is computed from; None of an expression that does not pad."""
    if isinstance(node, ast.Call):
        if (argument := _tokenizes(node)) is not None:
            return [argument]
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in _FILLED and node.args and isinstance(shape := node.args[0], ast.Tuple) and len(shape.elts) > 1:
            return None if isinstance(shape.elts[-1], ast.Constant) else shape.elts[1:]
        return node.args[1:2] if name in _PADS else None
    # ids + [PAD] * (length - len(ids))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and isinstance(node.left, ast.List):
        missing = node.right
        return [missing.left] if isinstance(missing, ast.BinOp) and isinstance(missing.op, ast.Sub) else None
    return None


def _tokenizes(node: ast.AST) -> ast.expr | None:
    """The argument of a call that has a tokenizer pad to its limit: the limit, else the padding; None of others."""
    words = {word.arg: word.value for word in node.keywords} if isinstance(node, ast.Call) else {}
    padding = words.get("padding")
    if not isinstance(padding, ast.Constant) or padding.value != _TO_LONGEST:
        return None
    return words.get("max_length", padding)


def _assigns(node: ast.Assign, names: set[str]) -> bool:
    return any(isinstance(target, ast.Name) and target.id in names for target in node.targets)

"""Whether a data set takes a list of indices as well as one, because all it does is to index tensors with it.

Read from the source of its class; nothing is run.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Subset, TensorDataset

from dptune.capture.injected.observe.places import is_the_users


def takes_lists(dataset: Any) -> bool:
    """Raises OSError, TypeError or SyntaxError where the source cannot be read."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    if type(dataset) is TensorDataset:
        return True
    method = getattr(type(dataset), "__getitem__", None)
    code = getattr(method, "__code__", None)
    if code is None or hasattr(dataset, "__getitems__") or not is_the_users(code.co_filename):
        return False
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(code))).body
    if not isinstance(function, ast.FunctionDef) or len(function.args.args) != 2 or function.decorator_list:
        return False
    this, index = (argument.arg for argument in function.args.args)
    body = [statement for statement in function.body if not _is_docstring(statement)]
    if len(body) != 1 or not isinstance(body[0], ast.Return) or body[0].value is None:
        return False
    parts = list(_parts(body[0].value))
    names = [_indexed(part, this, index) for part in parts]
    return bool(names) and all(name and isinstance(getattr(dataset, name, None), torch.Tensor) for name in names)


def _parts(value: ast.expr) -> Iterator[ast.expr]:
    """Of a sample: itself, or what the tuple, list or dict holds."""
    if isinstance(value, (ast.Tuple, ast.List)):
        yield from value.elts
    elif isinstance(value, ast.Dict):
        yield from value.values
    else:
        yield value


def _indexed(part: ast.expr, this: str, index: str) -> str:
    """The attribute that is indexed, in `self.rows[index]`; empty for anything else."""
    if not isinstance(part, ast.Subscript) or not isinstance(part.slice, ast.Name) or part.slice.id != index:
        return ""
    held = part.value
    return held.attr if isinstance(held, ast.Attribute) and ast.unparse(held.value) == this else ""


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)

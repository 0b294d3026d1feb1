"""Finds, in the source of the script, the line that lets parameters require gradients."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator

from dptune.capture.injected.observe.places import users_place
from dptune.capture.injected.observe.script_files import script_files


def unfreezing_line() -> str | None:
    """The only statement of the script that does, as `function (file:line)`; None without one, or with several."""
    found = [(file, *line) for file in script_files() for line in _switches(file)]
    if len(found) != 1:
        return None
    file, name, line = found[0]
    place = users_place(file, line)
    return f"{name} ({place})" if name else place


def _switches(file: str) -> Iterator[tuple[str, int]]:
    """The functions and lines that set `requires_grad` of something, but to False."""
    text = "".join(linecache.getlines(file))
    if "requires_grad" in text:
        yield from _inside(ast.parse(text), "")


def _inside(node: ast.AST, name: str) -> Iterator[tuple[str, int]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _inside(child, f"{child.name}.")
        elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _inside(child, (name if name.endswith(".") else "") + child.name)
        else:
            if isinstance(child, ast.Assign) and _sets(child):
                yield name.removesuffix("."), child.lineno
            if isinstance(child, ast.Call) and _calls(child):
                yield name.removesuffix("."), child.lineno
            yield from _inside(child, name)


def _sets(statement: ast.Assign) -> bool:
    named = any(isinstance(target, ast.Attribute) and target.attr == "requires_grad" for target in statement.targets)
    return named and not _is_false(statement.value)


def _calls(call: ast.Call) -> bool:
    switches = isinstance(call.func, ast.Attribute) and call.func.attr == "requires_grad_"
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return switches and not any(_is_false(argument) for argument in given)


def _is_false(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is False

"""The line of the script that assigns an attribute of a class, or a global variable.

Read from the source; nothing is run.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
from types import ModuleType

from dptune.capture.injected.observe.places import is_the_users, users_place


def assigned_at(holder: type | ModuleType, name: str) -> str | None:
    """`file:line` of the first assignment, in the class or one it inherits from; None where the source shows none."""
    if isinstance(holder, ModuleType):
        file = holder.__file__ or ""
        line = _line("".join(linecache.getlines(file)), name, in_class=False)
        return users_place(file, line) if line else None
    for kind in holder.__mro__:
        try:
            file = inspect.getsourcefile(kind) or ""
            if not is_the_users(file):
                continue
            lines, first = inspect.getsourcelines(kind)
        except (OSError, TypeError):
            continue
        line = _line(textwrap.dedent("".join(lines)), name, in_class=True)
        if line:
            return users_place(file, first + line - 1)
    return None


def _line(source: str, name: str, *, in_class: bool) -> int | None:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    lines = [
        node.lineno
        for node in (ast.walk(tree) if in_class else tree.body)
        if isinstance(node, (ast.Assign, ast.AnnAssign))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if _names(target, name, in_class=in_class)
    ]
    return min(lines, default=None)


def _names(target: ast.expr, name: str, *, in_class: bool) -> bool:
    if isinstance(target, ast.Tuple):
        return any(_names(part, name, in_class=in_class) for part in target.elts)
    if isinstance(target, ast.Attribute):
        return in_class and target.attr == name
    return isinstance(target, ast.Name) and not in_class and target.id == name

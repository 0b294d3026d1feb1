"""Whether training uses what a collective gives to the script, by the source of the function that calls it.

It does where the result, or what is computed of it later in the function, goes into a backward pass, or is stored in
rows of a tensor, as a queue of keys. Nothing is run. What is not understood counts as not used.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import CodeType

from dptune.capture.injected.observe.validation import source_of, tree_of

_STORES = frozenset(("copy_", "lerp_", "index_copy_", "index_put_", "scatter_", "masked_scatter_"))
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def used_in_training(code: CodeType, line: int, called: str) -> bool:
    """Whether what the call of that name in this line returns, or changes in place, is used in training."""
    tree = tree_of(code.co_filename)
    function: ast.AST | None = tree if code.co_name == "<module>" else source_of(code)
    if function is None:
        return False
    for statement in _statements(function):
        calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call) and _name(node) == called]
        if statement.lineno <= line <= (statement.end_lineno or line) and calls:
            return _Use(tree, statement, calls[0]).found(function)
    return False


class _Use:
    def __init__(self, tree: ast.AST, statement: ast.stmt, call: ast.Call) -> None:
        self._tree, self._from, self._call = tree, statement.lineno, call
        self._tainted: set[str] = set()
        if isinstance(statement, ast.Expr) and statement.value is call:  # in place
            given = [*call.args, *(keyword.value for keyword in call.keywords)]
            self._tainted = {ast.unparse(arg) for arg in given if isinstance(arg, (ast.Name, ast.Attribute))}

    def found(self, function: ast.AST) -> bool:
        """Follow names from the call on, until no more are found."""
        later = [node for node in ast.walk(function) if getattr(node, "lineno", 0) >= self._from]
        known = -1
        while known != len(self._tainted):
            known = len(self._tainted)
            for target, value in _assignments(later):
                if self._has(value) and isinstance(target, (ast.Name, ast.Attribute)):
                    self._tainted.add(ast.unparse(target))
        stored = any(self._has(value) and _is_row(target) for target, value in _assignments(later))
        return stored or any(self._trains(node) for node in later if isinstance(node, ast.Call))

    def _has(self, node: ast.AST) -> bool:
        return any(
            inner is self._call
            or (isinstance(inner, (ast.Name, ast.Attribute)) and ast.unparse(inner) in self._tainted)
            for inner in ast.walk(node)
        )

    def _trains(self, call: ast.Call) -> bool:
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        passed = [at for at, arg in enumerate(given) if self._has(arg)]
        name = _name(call)
        if name.endswith("backward"):
            return bool(passed) or self._has(call.func)
        if not passed or call is self._call:
            return False
        return name in _STORES or any(_stores(function, passed) for function in self._defined(name))

    def _defined(self, name: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        yield from (node for node in ast.walk(self._tree) if isinstance(node, _FUNCTIONS) and node.name == name)


def _stores(function: ast.FunctionDef | ast.AsyncFunctionDef, passed: list[int]) -> bool:
    """Whether the function stores one of these parameters in rows of a tensor."""
    names = [each.arg for each in function.args.args if each.arg != "self"]
    given = {names[at] for at in passed if at < len(names)}

    def has(node: ast.AST) -> bool:
        return any(isinstance(inner, ast.Name) and inner.id in given for inner in ast.walk(node))

    nodes = list(ast.walk(function))
    calls = [node for node in nodes if isinstance(node, ast.Call) and _name(node) in _STORES]
    return any(has(value) and _is_row(target) for target, value in _assignments(nodes)) or any(
        has(arg) for call in calls for arg in call.args
    )


def _assignments(nodes: list[ast.AST]) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Targets, each with the value that it gets."""
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
                yield from ((part, node.value) for part in parts)
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            yield node.target, node.value


def _is_row(target: ast.AST) -> bool:
    """Whether it is part of a tensor, and not the value of a dictionary with a name."""
    return isinstance(target, ast.Subscript) and not (
        isinstance(target.slice, (ast.Constant, ast.JoinedStr)) and not isinstance(_value(target.slice), int)
    )


def _value(node: ast.expr) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def _statements(function: ast.AST) -> list[ast.stmt]:
    """Those without a body of their own."""
    return [node for node in ast.walk(function) if isinstance(node, ast.stmt) and not hasattr(node, "body")]


def _name(call: ast.Call) -> str:
    """Of the function or method: `gather` of `accelerator.gather(x)`."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")

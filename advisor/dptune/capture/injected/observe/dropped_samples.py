"""Where an iterable data set prepares samples and drops them by a test that does not look at what was prepared.

Read from the source of its methods: in a loop something is called and kept under a name; then comes `if ...: continue`,
or an `if` around the `yield`, whose test uses nothing of it. The test could come first. Nothing is run.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Iterator, Sequence
from typing import Any

from dptune.capture.injected.observe.places import is_the_users, relative

# Calls that prepare nothing worth sparing, and those that read or draw the next thing: later samples need them.
_CHEAP = frozenset(
    (
        *("strip", "rstrip", "lstrip", "split", "decode", "encode", "get", "pop", "append", "items", "keys", "values"),
        *("len", "int", "float", "str", "bool", "range", "enumerate", "zip", "min", "max", "isinstance"),
        *("next", "iter", "read", "readline", "recv", "random", "randint", "uniform", "choice", "shuffle", "seed"),
        *("get_worker_info", "get_rank", "get_world_size"),
    )
)


def drops(dataset: Any) -> tuple[str, str] | None:
    """What prepares a sample, as `function (file:line)`, and the line that drops it; None where nothing is seen."""
    for method in _methods(type(dataset)):
        code = method.__code__
        if not is_the_users(code.co_filename):
            continue
        lines, first = inspect.getsourcelines(method)
        tree = ast.parse(textwrap.dedent("".join(lines)))
        found = next((found for loop in _loops(tree) if (found := _late(loop.body))), None)
        if found:
            prepared, dropped = (f"{relative(code.co_filename)}:{first + line - 1}" for line in found)
            return f"{method.__qualname__} ({prepared})", dropped
    return None


def _methods(kind: type) -> Iterator[Any]:
    methods = [value for value in vars(kind).values() if isinstance(value, types.FunctionType)]
    yield from sorted(methods, key=lambda method: method.__name__ != "__iter__")


def _loops(tree: ast.AST) -> Iterator[ast.For | ast.While]:
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.For | ast.While))


def _late(body: Sequence[ast.stmt]) -> tuple[int, int] | None:
    """The lines of the first preparation and of the test that drops what it made."""
    made: dict[str, int] = {}
    for at, statement in enumerate(body):
        if isinstance(statement, ast.Assign):
            names = {node.id for target in statement.targets for node in ast.walk(target) if isinstance(node, ast.Name)}
            if _prepares(statement.value) or _names(statement.value) & made.keys():
                made.update(dict.fromkeys(names, statement.lineno))
        elif isinstance(statement, ast.If) and made and _drops(statement, body[at + 1 :], set(made)):
            return min(made.values()), statement.lineno
    return None


def _drops(test: ast.If, rest: Sequence[ast.stmt], made: set[str]) -> bool:
    """Whether a test that uses nothing of what was made decides if a sample is yielded."""
    if test.orelse or _names(test.test) & made:
        return False
    yields_after = any(map(_yields, rest))
    return yields_after if isinstance(test.body[-1], ast.Continue) else _yields(test) and not yields_after


def _prepares(value: ast.expr) -> bool:
    called = [node.func for node in ast.walk(value) if isinstance(node, ast.Call)]
    names = {callee.attr if isinstance(callee, ast.Attribute) else getattr(callee, "id", "") for callee in called}
    return bool(names - _CHEAP)


def _names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _yields(tree: ast.AST) -> bool:
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(tree))

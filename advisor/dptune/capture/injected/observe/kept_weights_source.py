"""Finds, in the source of the script, weights that are kept without a copy and read back later.

Nothing is run. A later use is a `load_state_dict` or `torch.save` of the same variable or attribute, outside of the
statements that follow the assignment in its block: those use the weights before they are trained on.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_NO_WEIGHTS = re.compile("optim|sched|scaler|loader|sampler", re.IGNORECASE)
_COPIES_NO_TENSORS = ("dict", "copy", "OrderedDict")
_READERS = ("load_state_dict", "save")


@dataclass(frozen=True)
class Assignment:
    """Where weights are kept: in a local variable, unless `is_shared`, an attribute or a global one."""

    line: int
    name: str
    is_shared: bool
    used_line: int | None  # where they are read later
    loaded: bool  # by `load_state_dict` of what they were taken from
    if_better: bool  # under a comparison, as of the best weights so far


@dataclass
class _Kept:
    node: ast.Assign | ast.AnnAssign
    target: ast.expr
    function: ast.AST | None
    if_better: bool
    following: set[ast.AST] = field(default_factory=set)  # the statements after it in its block


def assignment_at(file: str, line: int) -> Assignment | None:
    """The assignment whose value is computed on that line; None where the source shows none."""
    for tree in _parsed(file):
        for kept in _assignments(tree):
            if kept.node.lineno <= line <= (kept.node.end_lineno or kept.node.lineno):
                return _looked_up(kept, tree, None)
    return None


def best_weights(file: str, variables: Mapping[str, object]) -> list[Assignment]:
    """Assignments of a bare `state_dict()` under a comparison that `load_state_dict` of the same object reads later."""
    found = []
    for tree in _parsed(file):
        for kept in _assignments(tree):
            taken_from = _taken_from(kept.node.value, variables)
            if kept.if_better and taken_from is not None and not _NO_WEIGHTS.search(taken_from):
                found.append(_looked_up(kept, tree, taken_from))
    return [assignment for assignment in found if assignment.loaded]


def _parsed(file: str) -> Iterator[ast.Module]:
    text = "".join(linecache.getlines(file))
    if "state_dict" in text:
        yield ast.parse(text)


def _assignments(tree: ast.Module) -> Iterator[_Kept]:
    yield from _inside(tree, None, if_better=False)


def _inside(node: ast.AST, function: ast.AST | None, *, if_better: bool) -> Iterator[_Kept]:
    for _, block in ast.iter_fields(node):
        if not isinstance(block, list):
            continue
        for at, statement in enumerate(block):
            if isinstance(statement, (ast.Assign, ast.AnnAssign)):
                target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
                following = {inner for after in block[at + 1 :] for inner in ast.walk(after)}
                yield _Kept(statement, target, function, if_better, following)
            elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield from _inside(statement, statement, if_better=False)
            elif isinstance(statement, ast.AST):
                compares = isinstance(statement, ast.If) and _compares(statement.test)
                yield from _inside(statement, function, if_better=if_better or compares)


def _compares(test: ast.expr) -> bool:
    return any(
        isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE))
        for node in ast.walk(test)
    )


def _looked_up(kept: _Kept, tree: ast.Module, taken_from: str | None) -> Assignment:
    is_shared = kept.function is None or not isinstance(kept.target, ast.Name)
    scope = tree if is_shared or kept.function is None else kept.function
    name = ast.unparse(kept.target)
    used, loaded = None, False
    for call in ast.walk(scope):
        if call in kept.following or not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        if call.func.attr in _READERS and any(_is_same(read, kept.target) for read in _read_by(call)):
            used = used or call.lineno
            loaded = loaded or (call.func.attr == "load_state_dict" and ast.unparse(call.func.value) == taken_from)
    return Assignment(kept.node.lineno, name, is_shared, used, loaded, kept.if_better)


def _read_by(call: ast.Call) -> Iterator[ast.AST]:
    """The first argument, or what a dictionary there has."""
    for argument in call.args[:1]:
        yield from argument.values if isinstance(argument, ast.Dict) else [argument]


def _is_same(read: ast.AST, target: ast.expr) -> bool:
    if isinstance(target, ast.Attribute):  # of another name for the same object, perhaps
        return isinstance(read, ast.Attribute) and read.attr == target.attr
    return ast.unparse(read) == ast.unparse(target)


def _taken_from(value: ast.expr | None, variables: Mapping[str, object]) -> str | None:
    """The object whose `state_dict()` the value is, without a copy of the tensors; None for anything else."""
    if isinstance(value, ast.IfExp) and isinstance(value.test, ast.Name):
        chosen = variables.get(value.test.id)
        return _taken_from(value.body if chosen else value.orelse, variables) if isinstance(chosen, bool) else None
    if isinstance(value, ast.DictComp):
        return _of_items(value, variables)
    if not isinstance(value, ast.Call):
        return None
    name = _called(value)
    if name == "state_dict" and isinstance(value.func, ast.Attribute) and not value.args and not value.keywords:
        return ast.unparse(value.func.value)
    if name in _COPIES_NO_TENSORS:
        inner: Sequence[Any] = value.args or ([value.func.value] if isinstance(value.func, ast.Attribute) else [])
        return _taken_from(inner[0], variables) if inner else None
    return None


def _called(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def _of_items(comprehension: ast.DictComp, variables: Mapping[str, object]) -> str | None:
    """Of `{name: tensor for name, tensor in X.state_dict().items()}`."""
    (first, *others), value = comprehension.generators, comprehension.value
    items = first.iter
    if others or not isinstance(items, ast.Call) or _called(items) != "items" or not isinstance(value, ast.Name):
        return None
    return _taken_from(items.func.value, variables) if isinstance(items.func, ast.Attribute) else None

"""Finds, in the source of the functions that run, calls of `torch.save` that this rank will make, and their files.

A recording is often too short to reach a checkpoint. The functions on the stack of a training step are read, and those
of the script that they call. Conditions are decided by the values of their variables on this rank; code behind a
condition that cannot be decided and may depend on the rank is not read. A path is known from constants and variables; a
part that changes during training, for example the epoch, stays as it is in the source. Nothing of the script is called.
"""

from __future__ import annotations

import ast
import operator
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from types import FrameType, FunctionType
from typing import Any

import torch
import torch.distributed as dist

from dptune.capture.injected.observe.places import is_the_users, users_place
from dptune.capture.injected.observe.validation import (
    UNKNOWN,
    definition,
    scope_of_call,
    script_function,
    source_of,
    tree_of,
    value_of,
)

_FUNCTIONS = 60  # read in all
_DEEPEST = 8  # parts within parts of a path
OF_RANK = re.compile(
    r"(?i)rank|main|master|primary|chief|lead|coordinat|proc|worker|replica|zero|host|node|dist|only|gpu|cuda|device|local"
)
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_NOT_RUN = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_COMPARED: dict[type, Callable[[Any, Any], Any]] = {
    **{ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.Gt: operator.gt},
    **{ast.LtE: operator.le, ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not},
}
_HARMLESS = ("len", "min", "max", "abs", "int", "float", "isinstance", "hasattr")
_PLAIN = (bool, int, str, type(None))

Scope = Mapping[str, Any]


@dataclass
class _Reading:
    found: dict[str, str] = field(default_factory=dict)  # the line of the first call, by path
    seen: set[Any] = field(default_factory=set)


@dataclass
class _Function:
    """A function that is read: its file, its body, and the values of its names."""

    file: str
    body: Sequence[ast.stmt]
    scope: Scope


def save_calls(frame: FrameType | None) -> dict[str, str]:
    """By path, the line that saves it."""
    reading = _Reading()
    while frame is not None:
        code = frame.f_code
        if is_the_users(code.co_filename) and code not in reading.seen:
            reading.seen.add(code)
            tree = tree_of(code.co_filename)
            node = tree if code.co_name == "<module>" else definition(tree, code.co_name, code.co_firstlineno)
            if node is not None and not _is_of_rank(*getattr(node, "decorator_list", [])):
                scope = {**frame.f_globals, **frame.f_locals}
                _read(node.body, _Function(code.co_filename, node.body, scope), reading)  # type: ignore[attr-defined]
        frame = frame.f_back
    return reading.found


def _read(body: Sequence[ast.stmt], function: _Function, reading: _Reading) -> bool:
    """Read statements as far as every rank runs them; False if the code after them may not run on every rank."""
    for statement in body:
        if isinstance(statement, _NOT_RUN):
            continue
        if isinstance(statement, ast.If):
            if not _read_branches(statement, function, reading):
                return False
            continue
        if isinstance(statement, ast.Match):
            _read_cases(statement, function, reading)
            continue
        parts = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
        if any(parts):
            heads = [statement.iter] if isinstance(statement, ast.For) else getattr(statement, "items", [])
            if _is_of_rank(*heads) and not isinstance(statement, _LOOPS):
                continue
            goes_on = [_read(part, function, reading) for part in parts]
            if not all(goes_on) and not isinstance(statement, _LOOPS):
                return False
            continue
        for call in _calls(statement):
            _read_call(call, function, reading)
        if isinstance(statement, _LEAVES):
            return False
    return True


def _read_branches(statement: ast.If, function: _Function, reading: _Reading) -> bool:
    holds = _truth(statement.test, function)
    if holds is not UNKNOWN:
        return _read(statement.body if holds else statement.orelse, function, reading)
    if _is_of_rank(statement.test) or any(map(_may_ask, ast.walk(statement.test))):
        return not any(isinstance(node, _LEAVES) for branch in (statement.body, statement.orelse) for node in branch)
    for branch in (statement.body, statement.orelse):
        _read(branch, function, reading)
    return True


def _read_cases(statement: ast.Match, function: _Function, reading: _Reading) -> None:
    """Each may run, but for those that the rank may decide."""
    if _is_of_rank(statement.subject) or any(map(_may_ask, ast.walk(statement.subject))):
        return
    for case in statement.cases:
        guards = [case.guard] if case.guard else []
        if not _is_of_rank(*guards) and not any(_may_ask(node) for guard in guards for node in ast.walk(guard)):
            _read(case.body, function, reading)


def _calls(node: ast.AST) -> list[ast.Call]:
    """The calls that run whenever the statement does."""
    if isinstance(node, (*_NOT_RUN, ast.IfExp, ast.BoolOp)):
        return []
    inner = [call for child in ast.iter_child_nodes(node) for call in _calls(child)]
    return [*inner, node] if isinstance(node, ast.Call) else inner


def _read_call(call: ast.Call, function: _Function, reading: _Reading) -> None:
    found = value_of(call.func, function.scope)
    if found is torch.save and found.__module__ == "torch.serialization":  # not one that the script puts in its place
        file = (
            call.args[1] if len(call.args) > 1 else next((arg.value for arg in call.keywords if arg.arg == "f"), None)
        )
        path = _path(file, function) if file is not None else None
        place = users_place(function.file, call.lineno)
        if path and place:
            reading.found.setdefault(os.path.realpath(path), place)
        return
    called = script_function(found)
    if called is None:
        return
    code = called.__code__
    if code in reading.seen or len(reading.seen) >= _FUNCTIONS:
        return
    reading.seen.add(code)
    node = source_of(code)
    if node is None or _is_of_rank(*getattr(node, "decorator_list", [])):
        return
    body = node.body  # type: ignore[attr-defined]
    _read(body, _Function(code.co_filename, body, scope_of_call(call, found, called, function.scope)), reading)


def _is_of_rank(*nodes: ast.AST) -> bool:
    return any(OF_RANK.search(ast.unparse(node)) for node in nodes)


def _may_ask(node: ast.AST) -> bool:
    """Whether it calls something that may know the rank."""
    return isinstance(node, ast.Call) and ast.unparse(node.func) not in _HARMLESS


def _truth(test: ast.expr, function: _Function) -> Any:
    """Whether a condition holds on this rank; UNKNOWN if it cannot be decided."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        holds = _truth(test.operand, function)
        return UNKNOWN if holds is UNKNOWN else not holds
    if isinstance(test, ast.BoolOp):
        parts = [_truth(part, function) for part in test.values]
        decides = isinstance(test.op, ast.Or)
        if any(part is not UNKNOWN and bool(part) is decides for part in parts):
            return decides
        return UNKNOWN if any(part is UNKNOWN for part in parts) else not decides
    value = _plain(test, function)
    return UNKNOWN if value is UNKNOWN else bool(value)


def _plain(node: ast.expr, function: _Function) -> Any:
    """The number, string or None that an expression always has; UNKNOWN if it may change."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARED:
        sides = _plain(node.left, function), _plain(node.comparators[0], function)
        return UNKNOWN if UNKNOWN in sides else _COMPARED[type(node.ops[0])](*sides)
    if isinstance(node, ast.Call) and not node.args and not node.keywords and dist.is_initialized():
        called = value_of(node.func, function.scope)
        known = {dist.get_rank: dist.get_rank, dist.get_world_size: dist.get_world_size}
        return known[called]() if isinstance(called, FunctionType) and called in known else UNKNOWN
    if isinstance(node, (ast.Name, ast.Attribute)) and not _is_set(node, function):
        value = value_of(node, function.scope)
        return value if type(value) in _PLAIN else UNKNOWN
    return UNKNOWN


def _is_set(node: ast.expr, function: _Function) -> bool:
    """Whether the function assigns it, so that its value may change."""
    wanted = ast.unparse(node)
    stores = (each for statement in function.body for each in ast.walk(statement))
    return any(
        isinstance(each, (ast.Name, ast.Attribute)) and isinstance(each.ctx, ast.Store) and ast.unparse(each) == wanted
        for each in stores
    )


def _path(node: ast.expr, function: _Function, deepest: int = _DEEPEST) -> str | None:
    """The path that an expression gives; None if it may differ between ranks."""
    if deepest == 0:
        return None
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return _joined([_path(part, function, deepest - 1) for part in node.values], "")
    if isinstance(node, ast.FormattedValue):
        return _path(node.value, function, deepest - 1)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Div)):
        between = "/" if isinstance(node.op, ast.Div) else ""
        return _joined([_path(side, function, deepest - 1) for side in (node.left, node.right)], between)
    if isinstance(node, ast.Call) and not node.keywords:
        name = ast.unparse(node.func)
        if name in ("os.path.join", "Path", "pathlib.Path", "str"):
            return _joined([_path(part, function, deepest - 1) for part in node.args], "/")
        return None
    if isinstance(node, (ast.Name, ast.Attribute)):
        return _named(node, function, deepest)
    return None


def _named(node: ast.Name | ast.Attribute, function: _Function, deepest: int) -> str | None:
    if isinstance(node, ast.Name):
        set_to = [
            each.value
            for statement in function.body
            for each in ast.walk(statement)
            if isinstance(each, ast.Assign) and [ast.unparse(target) for target in each.targets] == [node.id]
        ]
        if len(set_to) == 1:
            return _path(set_to[0], function, deepest - 1)
    if _is_set(node, function):
        counts = _is_counter(node, function) and not _is_of_rank(node) and deepest < _DEEPEST
        return f"{{{ast.unparse(node)}}}" if counts else None
    value = value_of(node, function.scope)
    return str(value) if isinstance(value, (str, int, PurePath)) else None


def _is_counter(node: ast.expr, function: _Function) -> bool:
    """Whether only loops or additions assign it."""
    wanted = ast.unparse(node)
    for statement in function.body:
        for each in ast.walk(statement):
            targets = getattr(each, "targets", []) if isinstance(each, ast.Assign) else []
            value = getattr(each, "value", None)
            if wanted in map(ast.unparse, targets) and not (isinstance(value, ast.Constant) and _counts(value.value)):
                return False
            if any(
                wanted == ast.unparse(item.optional_vars) for item in getattr(each, "items", []) if item.optional_vars
            ):
                return False
    return True


def _counts(value: Any) -> bool:
    """Whether a counter may begin there: a text may be another one on each rank."""
    return isinstance(value, (int, float))


def _joined(parts: Sequence[str | None], between: str) -> str | None:
    return between.join(part for part in parts if part is not None) if parts and None not in parts else None

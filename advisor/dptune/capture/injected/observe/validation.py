"""Finds, in the source of the training loop, a validation that leaves the model in evaluation mode.

A recording is often too short to reach it. The loops around the optimizer step are read, with the functions of the
script that they call: one of them calls `.eval()` on the model, and none calls anything named after training that could
switch back. What cannot be resolved to a function or a module counts as if it did.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import CellType, CodeType, FrameType, FunctionType, MethodType
from typing import Any

from torch import nn

from dptune.capture.injected.observe.places import function_name, is_the_users, users_place

_FUNCTIONS = 60  # that are read in all
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_LEAVES = (ast.Break, ast.Return, ast.Raise)
UNKNOWN = object()  # the value of a name that cannot be read


@dataclass
class _Read:
    """What the functions that a loop calls do: the place of the first `.eval()` on the model; whether it is undone."""

    around: frozenset[int]  # the modules of the model
    evaluates: str | None = None
    restores: bool = False
    seen: set[Any] = field(default_factory=set)


def keeps_evaluation_mode(frame: FrameType | None, around: frozenset[int]) -> str | None:
    """The call of `.eval()` on one of these modules that a loop around the frame leaves so: `function (file:line)`."""
    while frame is not None:
        if is_the_users(frame.f_code.co_filename):
            for loop in loops_around(frame):  # the innermost that evaluates decides
                read = _Read(around)
                scope = {**frame.f_globals, **frame.f_locals}
                _read(loop, scope, frame.f_code.co_filename, function_name(frame.f_code), read, goes_on=True)
                if read.evaluates:
                    return None if read.restores else read.evaluates
        frame = frame.f_back
    return None


def loops_around(frame: FrameType) -> list[ast.For | ast.AsyncFor | ast.While]:
    """The loops of the frame's function that are around its line, innermost first."""
    tree = tree_of(frame.f_code.co_filename)
    name = frame.f_code.co_name
    body = tree if name == "<module>" else definition(tree, name, frame.f_code.co_firstlineno)
    loops = [node for node in _inside(body) if isinstance(node, (ast.For, ast.AsyncFor, ast.While))]
    around = [loop for loop in loops if loop.lineno <= frame.f_lineno <= (loop.end_lineno or 0)]
    return sorted(around, key=lambda enclosing: -enclosing.lineno)


@functools.lru_cache(maxsize=64)
def tree_of(file: str) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse("".join(linecache.getlines(file)))


def definition(tree: ast.AST, name: str, line: int) -> ast.AST | None:
    """The function of that name that begins in that line, or whose first decorator does."""
    return _definitions(tree).get((name, line))


@functools.lru_cache(maxsize=64)
def _definitions(tree: ast.AST) -> dict[tuple[str, int], ast.AST]:
    found: dict[tuple[str, int], ast.AST] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            found.setdefault((node.name, first), node)
    return found


def _inside(
    node: ast.AST | None, scope: Mapping[str, Any] | None = None, *, goes_on: bool = False
) -> Iterator[ast.AST]:
    """What runs when it runs: not what is defined in it, nor a branch that a flag of the script switches off.

    `goes_on`: nor a branch after which a loop does not go on.
    """
    children: Iterable[ast.AST] = ast.iter_child_nodes(node) if node is not None else ()
    if isinstance(node, ast.If):
        flag = (scope or {}).get(node.test.id) if isinstance(node.test, ast.Name) else None
        if isinstance(flag, bool):
            children = node.body if flag else node.orelse
        elif goes_on and isinstance(node.body[-1], _LEAVES):
            children = [node.test, *node.orelse]
    for child in children:
        if not isinstance(child, _DEFINITIONS):
            yield child
            yield from _inside(child, scope, goes_on=goes_on)


def _read(
    node: ast.AST | None, scope: Mapping[str, Any], file: str, name: str, read: _Read, *, goes_on: bool = False
) -> None:
    for inner_node in _inside(node, scope, goes_on=goes_on):
        if (
            isinstance(inner_node, ast.Attribute)
            and inner_node.attr == "training"
            and isinstance(inner_node.ctx, ast.Store)
        ):
            read.restores = True
        if isinstance(inner_node, ast.Call):
            _read_call(inner_node, scope, file, name, read)


def _read_call(call: ast.Call, scope: Mapping[str, Any], file: str, name: str, read: _Read) -> None:
    called = call.func
    method = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    if isinstance(called, ast.Attribute):
        of = value_of(called.value, scope)
        if method == "eval" and not call.args and id(of) in read.around:
            place = users_place(file, call.lineno)
            read.evaluates = read.evaluates or (f"{place}" if name == "<module>" else f"{name} ({place})")
            return
    found = value_of(called, scope)
    function = script_function(found)
    if function is None:
        read.restores = read.restores or "train" in method
        return
    if function in read.seen or len(read.seen) >= _FUNCTIONS:
        read.restores = read.restores or len(read.seen) >= _FUNCTIONS
        return
    read.seen.add(function)
    code = function.__code__
    node = source_of(code)
    read.restores = read.restores or node is None
    _read(node, scope_of_call(call, found, function, scope), code.co_filename, function_name(code), read)


def script_function(found: Any) -> FunctionType | None:
    """The function of the script that runs when this is called, without its decorators; None for anything else."""
    function = found.__func__ if isinstance(found, MethodType) else found
    function = inspect.unwrap(function) if callable(function) else function
    return function if isinstance(function, FunctionType) and is_the_users(function.__code__.co_filename) else None


def source_of(code: CodeType) -> ast.AST | None:
    """The syntax tree of a function; None where its file has none of that name in that line."""
    return definition(tree_of(code.co_filename), code.co_name, code.co_firstlineno)


def scope_of_call(call: ast.Call, found: Any, function: FunctionType, scope: Mapping[str, Any]) -> dict[str, Any]:
    """What names stand for in a function that is called so; its local variables but the parameters are not known."""
    code = function.__code__
    given = [found.__self__] if isinstance(found, MethodType) else []
    given += [value_of(arg, scope) for arg in call.args]
    inner = {name: value for name, value in function.__globals__.items() if name not in code.co_varnames}
    inner.update(zip(code.co_freevars, (_content(cell) for cell in function.__closure__ or ()), strict=False))
    inner.update(zip(code.co_varnames[: code.co_argcount], given, strict=False))
    inner.update({keyword.arg: value_of(keyword.value, scope) for keyword in call.keywords if keyword.arg})
    return inner


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return UNKNOWN


def value_of(node: ast.expr, scope: Mapping[str, Any]) -> Any:
    """What a name, or a chain of attributes, stands for; no property is asked for."""
    if isinstance(node, ast.Name):
        return scope.get(node.id, UNKNOWN)
    if not isinstance(node, ast.Attribute):
        return UNKNOWN
    of = value_of(node.value, scope)
    if of is UNKNOWN:
        return UNKNOWN
    if isinstance(of, nn.Module) and node.attr in of._modules:
        return of._modules[node.attr]
    found = inspect.getattr_static(of, node.attr, UNKNOWN)
    if isinstance(found, FunctionType) and not inspect.ismodule(of) and not inspect.isclass(of):
        return MethodType(found, of)
    return UNKNOWN if isinstance(found, property) else found

"""Finds, in the source of the training loop, an evaluation of a model that nothing puts into evaluation mode.

A recording is often too short to reach one. The loops around the optimizer step are read, with the functions of the
script that they call. Found: a call of the model with gradients disabled, in a loop over a data loader, if nothing in
the files read can change the mode of a module, and the model is not given to a class or a library that could.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Callable, Mapping
from types import CodeType, FrameType
from typing import Any

from torch.utils.data import DataLoader

from dptune.capture.injected.observe.places import is_the_users, users_place
from dptune.capture.injected.observe.validation import (
    loops_around,
    scope_of_call,
    script_function,
    source_of,
    value_of,
)
from dptune.runfile.work_kinds import evaluates, kind_of

_FUNCTIONS = 60  # that are read in all
_CHANGES_MODE = re.compile(r"\beval\b|\.train\(\s*[^)\s]|\btraining\b|\bevaluating\b")
_WITHOUT_GRADIENTS = re.compile(r"\b(no_grad|inference_mode)\b")
_NOT_RUN = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)

Scope = Mapping[str, Any]


class _Search:
    def __init__(self, around: frozenset[int], collects: Callable[[str], bool]) -> None:
        self.around = around
        self.collects = collects
        self.seen: set[Any] = set()
        self.files: set[str] = set()
        self.found: str | None = None
        self.hidden = False  # whether something unread gets the model


def evaluation_without_mode(
    frame: FrameType | None, around: frozenset[int], collects: Callable[[str], bool]
) -> str | None:
    """The line that calls one of these modules so; functions whose names `collects` accepts are left out."""
    search = _Search(around, collects)
    while frame is not None:
        code = frame.f_code
        if is_the_users(code.co_filename):
            search.files.add(code.co_filename)
            scope = {**frame.f_globals, **frame.f_locals}
            for loop in loops_around(frame)[-1:]:  # the outermost
                _read(loop, scope, code.co_filename, search, off=False)
        frame = frame.f_back
    changes = any(_CHANGES_MODE.search("".join(linecache.getlines(file))) for file in search.files)
    return None if changes or search.hidden else search.found


def evaluates_model(code: CodeType) -> bool:
    """Whether a function of the script evaluates: its name says so, it disables gradients, and it calls `.eval()` or
    loops; no backward pass is in its source.
    """
    node = source_of(code) if kind_of(code.co_name) == "evaluation" else None
    if node is None:
        return False
    nodes = list(ast.walk(node))
    attributes = {each.attr for each in nodes if isinstance(each, ast.Attribute)}
    guards = [ast.unparse(each) for each in getattr(node, "decorator_list", [])]
    guards += [ast.unparse(item.context_expr) for each in nodes if isinstance(each, ast.With) for item in each.items]
    loops = evaluates(code.co_name) and any(isinstance(each, ast.For) for each in nodes)
    return (
        "backward" not in attributes and ("eval" in attributes or loops) and any(map(_WITHOUT_GRADIENTS.search, guards))
    )


def _read(node: ast.AST, scope: Scope, file: str, search: _Search, *, off: bool, over: bool = False) -> None:
    """`off`: without gradients; `over`: in a loop over a data loader that began there."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _NOT_RUN):
            continue
        is_off, is_over = off, over
        if isinstance(child, ast.With):
            is_off = off or any(_WITHOUT_GRADIENTS.search(ast.unparse(item.context_expr)) for item in child.items)
        if isinstance(child, ast.For) and off:
            is_over = over or any(isinstance(value_of(part, scope), DataLoader) for part in _names(child.iter))
        if isinstance(child, ast.Call):
            _read_call(child, scope, file, search, off=is_off, over=is_over)
        _read(child, scope, file, search, off=is_off, over=is_over)


def _read_call(call: ast.Call, scope: Scope, file: str, search: _Search, *, off: bool, over: bool) -> None:
    found = value_of(call.func, scope)
    if off and over and id(found) in search.around:
        search.found = search.found or users_place(file, call.lineno)
        return
    function = script_function(found)
    if function is None:
        given = any(id(value_of(arg, scope)) in search.around for arg in call.args)
        search.hidden = search.hidden or (given and not _is_torchs(found))
        return
    code = function.__code__
    if code in search.seen or len(search.seen) >= _FUNCTIONS or search.collects(code.co_name):
        return
    search.seen.add(code)
    search.files.add(code.co_filename)
    node = source_of(code)
    if node is not None:
        decorators = " ".join(map(ast.unparse, getattr(node, "decorator_list", [])))
        off = off or bool(_WITHOUT_GRADIENTS.search(decorators))
        body = ast.Module(node.body, [])  # type: ignore[attr-defined]
        _read(body, scope_of_call(call, found, function, scope), code.co_filename, search, off=off, over=over)


def _is_torchs(called: Any) -> bool:
    return str(getattr(called, "__module__", None) or "").partition(".")[0] in ("torch", "builtins")


def _names(node: ast.expr) -> list[ast.expr]:
    return [each for each in ast.walk(node) if isinstance(each, (ast.Name, ast.Attribute))]

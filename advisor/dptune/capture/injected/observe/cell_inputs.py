"""Loops of the script over a recurrent layer, one step at a time: whether its inputs are known before the loop.

Read from the source of the loop and of the functions between it and the layer. What a round assigns, and what follows
from that, depends on the round before: the state of the layer, but not its input.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from types import CodeType, FrameType
from typing import Any

from dptune.capture.injected.observe.item_loops import calls_in, changed_in, independent, innermost_loop, names_in, once
from dptune.capture.injected.observe.places import is_the_users
from dptune.capture.injected.observe.validation import source_of

_PASSES = 4  # over the assignments of a function: what depends on what
_Statement = ast.stmt


def cell_loop(frame: FrameType | None) -> tuple[FrameType, bool, Any] | None:
    """The frame of the innermost loop around the call of a cell, and whether its inputs are known before the loop.

    With the object whose method the loop calls, if that is not the cell itself. None where there is no loop.
    """
    inner: list[FrameType] = []
    while frame is not None:
        if is_the_users(frame.f_code.co_filename):
            loop = innermost_loop(frame.f_code.co_filename, frame.f_lineno)
            if loop is not None:
                called = inner[-1].f_locals.get("self") if inner else None
                return frame, isinstance(loop, ast.For) and _known(loop, frame.f_lineno, inner), called
            inner.append(frame)
        frame = frame.f_back
    return None


def _known(loop: ast.For, line: int, inner: Sequence[FrameType]) -> bool:
    """`inner`: the frames from the cell's outwards, without that of the loop."""
    (statement,) = _at(loop.body, line)
    if not all(once(set(changed_in(each)), loop.body) for each in (statement,)):
        return False
    if not inner:
        return independent(loop, line, first_only=True)
    changed = {name for each in loop.body for name in changed_in(each)} - set(names_in([loop.target]))
    tainted = changed - _of_items(loop, changed, line)
    for outer, frame in zip((statement, *inner[::-1]), (*inner[::-1], None), strict=True):
        found: _Statement | None = outer if isinstance(outer, ast.stmt) else None
        if isinstance(outer, FrameType):
            source = source_of(outer.f_code)
            if source is None:
                return False
            tainted = _flows(source, tainted)
            found = next(iter(_at(list(ast.walk(source)), outer.f_lineno)), None)
        calls = [call for call in calls_in(found) if _given(call) & tainted] if found is not None else []
        if len(calls) != 1:
            return False
        if frame is None:
            return not names_in(calls[0].args[:1]) & tainted
        tainted = _parameters(calls[0], frame.f_code, tainted)
        if "self" in tainted:
            return False
    return False


def _at(statements: Sequence[ast.AST], line: int) -> list[_Statement]:
    """The innermost simple statement that holds a line; of a loop's body the one in it."""
    found = [
        each for each in statements if isinstance(each, ast.stmt) and each.lineno <= line <= (each.end_lineno or 0)
    ]
    return sorted(found, key=lambda each: ((each.end_lineno or 0) - each.lineno, -each.lineno))[:1]


def _of_items(loop: ast.For, changed: set[str], line: int) -> set[str]:
    """Names that a round assigns from its item alone, before that line."""
    of_item = set(names_in([loop.target]))
    found: set[str] = set()
    for statement in loop.body:
        if statement.lineno >= line or not isinstance(statement, ast.Assign):
            continue
        read, written = names_in([statement.value]), set(changed_in(statement))
        if read & (of_item | found) and not read & (changed - found) and once(written, loop.body):
            found |= written
    return found


def _flows(source: ast.AST, tainted: set[str]) -> set[str]:
    """With the names of a function that follow from these."""
    found = set(tainted)
    for _ in range(_PASSES):
        for node in ast.walk(source):
            if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.For, ast.With)):
                value = node.iter if isinstance(node, ast.For) else getattr(node, "value", None)
                if value is not None and names_in([value]) & found:
                    found |= set(changed_in(node))
    return found


def _given(call: ast.Call) -> set[str]:
    return names_in([*call.args, *(word.value for word in call.keywords)])


def _parameters(call: ast.Call, code: CodeType, tainted: set[str]) -> set[str]:
    """The parameters of the function that is called which are given one of these names."""
    named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    positional = named[1 if named[:1] == ("self",) else 0 :]
    found = {name for name, given in zip(positional, call.args, strict=False) if names_in([given]) & tainted}
    if any(isinstance(given, ast.Starred) for given in call.args):
        return set(named)
    return found | {word.arg or "self" for word in call.keywords if names_in([word.value]) & tainted}

"""Loops of the script over a list of items whose rounds are independent of one another, read from the source.

A round is independent if what its call is given comes from the item alone, or from what no round changes. Loops over
numbers are left out: they mostly count time steps.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping, Sequence, Sized
from types import FrameType
from typing import Any

import torch

from dptune.capture.injected.observe.places import is_the_users
from dptune.capture.injected.observe.validation import UNKNOWN, tree_of, value_of

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_LOOPS = (ast.For, ast.AsyncFor, ast.While, *_COMPREHENSIONS)
_WRAPS = ("enumerate", "zip", "tqdm", "reversed")  # an item for each of the first argument
_METHODS = ("values", "items", "unbind")  # an item for each of what they are called on


def items(frame: FrameType | None) -> tuple[FrameType, int] | None:
    """The frame of the innermost loop around a call, and the number of its items.

    None where there is no loop, where a round may need the one before, or where the number is not known.
    """
    while frame is not None:
        if is_the_users(frame.f_code.co_filename):
            loop, apart = _innermost(frame.f_code.co_filename, frame.f_lineno)
            if loop is not None:
                count = _count(loop, frame) if apart else None
                return None if count is None else (frame, count)
        frame = frame.f_back
    return None


def is_independent(file: str, line: int) -> bool:
    """Whether a line is in a loop of its function whose rounds do not need the one before."""
    loop, apart = _innermost(file, line)
    return loop is not None and apart


def innermost_loop(file: str, line: int) -> ast.AST | None:
    """The innermost loop of the function around a line whose rounds run it."""
    return _innermost(file, line)[0]


@functools.lru_cache(maxsize=256)
def _innermost(file: str, line: int) -> tuple[ast.AST | None, bool]:
    """The innermost loop whose rounds run a line, in the innermost function, and whether they are independent."""
    around = [node for node in _functions_and_loops(file) if _holds(node, line)]
    begins = max((node.lineno for node in around if isinstance(node, _FUNCTIONS)), default=0)
    loops = [node for node in around if isinstance(node, _LOOPS) and node.lineno >= begins]
    loop = max(loops, key=lambda loop: (loop.lineno, loop.col_offset), default=None)
    return loop, loop is not None and independent(loop, line)


@functools.lru_cache(maxsize=8)
def _functions_and_loops(file: str) -> list[ast.AST]:
    return [node for node in ast.walk(tree_of(file)) if isinstance(node, (*_FUNCTIONS, *_LOOPS))]


def _holds(node: ast.AST, line: int) -> bool:
    first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
        first, last = node.body[0].lineno, node.body[-1].end_lineno
    return first is not None and last is not None and first <= line <= last


def independent(loop: ast.AST, line: int, *, first_only: bool = False) -> bool:
    """Whether no round needs what another one changes; `first_only`: in the first arguments of calls on the line."""
    if isinstance(loop, _COMPREHENSIONS):
        if len(loop.generators) != 1 or any(isinstance(node, ast.NamedExpr) for node in ast.walk(loop)):
            return False
        names = set(_stored(loop.generators[0].target))
        return any(names & names_in(call.args + [word.value for word in call.keywords]) for call in calls_in(loop))
    if not isinstance(loop, ast.For):
        return False
    of_item = set(_stored(loop.target))
    changed = {name for statement in loop.body for name in changed_in(statement)} - of_item - _by_item(loop)
    for statement in loop.body:
        if statement.lineno <= line <= (statement.end_lineno or 0):
            given = set[str]()
            for call in calls_in(statement):
                every = [*call.args, *(word.value for word in call.keywords)]
                given |= names_in(call.args[:1] if first_only else every)
            return bool(given & of_item) and not given & changed
        if isinstance(statement, ast.Assign) and all(isinstance(target, ast.Name) for target in statement.targets):
            read, written = names_in([statement.value]), set(changed_in(statement))
            if read & of_item and not read & changed and once(written, loop.body):
                of_item |= written
                changed -= written
    return False


def _by_item(loop: ast.For) -> set[str]:
    """Lists of which a round reads and changes one element, that of its item: `states[i]`."""
    of_item = set(_stored(loop.target))
    parts = [part for statement in loop.body for part in ast.walk(statement)]
    own = [
        part.value.id
        for part in parts
        if isinstance(part, ast.Subscript) and isinstance(part.value, ast.Name)
        if isinstance(part.slice, ast.Name) and part.slice.id in of_item
    ]
    names = [part.id for part in parts if isinstance(part, ast.Name)]
    return {name for name in own if own.count(name) == names.count(name)}


def once(names: set[str], body: Sequence[ast.stmt]) -> bool:
    """Whether one statement alone changes each of these."""
    return all(sum(name in set(changed_in(statement)) for statement in body) == 1 for name in names)


def calls_in(node: ast.AST) -> Iterator[ast.Call]:
    """All calls in it."""
    return (call for call in ast.walk(node) if isinstance(call, ast.Call))


def names_in(nodes: Sequence[ast.AST]) -> set[str]:
    """All names in them."""
    return {part.id for node in nodes for part in ast.walk(node) if isinstance(part, ast.Name)}


def _stored(node: ast.AST) -> Iterator[str]:
    return (part.id for part in ast.walk(node) if isinstance(part, ast.Name))


def changed_in(node: ast.AST) -> Iterator[str]:
    """The names that are assigned, or whose parts are, or whose methods are called, as of a list that grows."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, (ast.Store, ast.Del)):
            yield part.id
        stores = isinstance(part, (ast.Attribute, ast.Subscript)) and isinstance(part.ctx, (ast.Store, ast.Del))
        base: ast.AST | None = part if stores else None
        if isinstance(part, ast.Expr) and isinstance(part.value, ast.Call):
            base = part.value.func if isinstance(part.value.func, ast.Attribute) else None
        while isinstance(base, (ast.Attribute, ast.Subscript)):
            base = base.value
        if isinstance(base, ast.Name):
            yield base.id


def _count(loop: ast.AST, frame: FrameType) -> int | None:
    """The number of items; None where it is not that of a list, a mapping, an array or a tensor that has a name."""
    if isinstance(loop, _COMPREHENSIONS) and loop.generators[0].ifs:
        return None
    iterated = loop.generators[0].iter if isinstance(loop, _COMPREHENSIONS) else getattr(loop, "iter", None)
    while isinstance(iterated, ast.Call):
        called = iterated.func
        if isinstance(called, ast.Attribute) and called.attr in _METHODS:
            iterated = called.value
        elif isinstance(called, ast.Name) and called.id in _WRAPS and iterated.args:
            iterated = iterated.args[0]
        else:
            return None
    found = value_of(iterated, _scope(frame)) if isinstance(iterated, ast.expr) else UNKNOWN
    if isinstance(found, torch.Tensor):
        return int(found.shape[0]) if found.dim() else None
    plain = isinstance(found, (list, tuple, Mapping)) or type(found).__module__.startswith("numpy")
    return len(found) if plain and isinstance(found, Sized) else None


def _scope(frame: FrameType) -> dict[str, Any]:
    """The names of the frame; of a comprehension also those of the function around it, which has its items."""
    scope = {**frame.f_globals, **frame.f_locals}
    if frame.f_code.co_name.startswith("<") and frame.f_back is not None and frame.f_code.co_name != "<module>":
        scope = {**scope, **frame.f_back.f_locals}
    return scope

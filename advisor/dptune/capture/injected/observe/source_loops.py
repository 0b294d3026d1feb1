"""The script's lines that lead to a call, and which of them are in a loop."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Sequence
from types import FrameType

from dptune.capture.injected.observe.places import is_the_users, users_place

_MOST_LINES = 40
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

Line = tuple[str, int]


def script_lines(frame: FrameType | None) -> tuple[Line, ...]:
    """File and line of the script's frames from this one on, innermost first."""
    found: list[Line] = []
    while frame is not None and len(found) < _MOST_LINES:
        if is_the_users(frame.f_code.co_filename):
            found.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


def parting(paths: Sequence[Sequence[Line]]) -> list[Line]:
    """Where the paths part, seen from outside: a line of each, without repetition.

    For paths that are the same: the innermost of their lines that is in a loop, else the innermost.
    """
    shared = 0
    while all(len(path) > shared for path in paths) and len({path[-1 - shared] for path in paths}) == 1:
        shared += 1
    if all(len(path) > shared for path in paths):
        return list(dict.fromkeys(path[-1 - shared] for path in paths))
    path = min(paths, key=len)
    return [next((line for line in path if _in_loop(*line)), path[0])] if path else []


def place(line: Line) -> str:
    """As `file:line`, the file relative to the folder that the script was started in."""
    return users_place(*line) or f"{line[0]}:{line[1]}"


def _in_loop(file: str, line: int) -> bool:
    """Whether the line is in the body of a loop of the innermost function around it."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return False
    nodes = [node for node in ast.walk(tree) if _holds(node, line)]
    functions = [node for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))]
    begins = max((node.lineno for node in functions), default=0)
    return any(getattr(node, "lineno", 0) >= begins for node in nodes if isinstance(node, (*_LOOPS, *_COMPREHENSIONS)))


def _holds(node: ast.AST, line: int) -> bool:
    first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    if isinstance(node, _LOOPS):
        first, last = node.body[0].lineno, node.body[-1].end_lineno
    return first is not None and last is not None and first <= line <= last

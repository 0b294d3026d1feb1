"""The script's call that makes an object, in its source: the line of each argument.

A file is parsed once, and each call is looked for once.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import linecache
from collections.abc import Iterator
from itertools import islice
from types import CodeType, FrameType
from typing import Any

from dptune.capture.injected.observe.places import OURS, Call, Places, is_the_users, relative

_CONSTRUCTING = ("__init__", "__post_init__")
_GENERATED = "<string>"  # the file of a constructor that dataclasses write
_ARGUMENTS = 100  # of a call


def calling_frame(frame: FrameType | None) -> tuple[FrameType | None, bool]:
    """The script's frame that makes an object, and whether it calls the constructor, or that of a subclass, itself.

    `frame` is that of the caller of the constructor, which may be a constructor as well.
    """
    direct = True
    while frame is not None:
        code = frame.f_code
        generated = code.co_filename == _GENERATED
        if not generated and is_the_users(code.co_filename):
            break
        direct = direct and (generated or code.co_name in _CONSTRUCTING or code.co_filename.startswith(OURS))
        frame = frame.f_back
    return frame, direct


def argument_lines(call: Call, names: tuple[str, ...] = ()) -> dict[str, str]:
    """`file:line` of each argument of a call; `names` are those of positional arguments.

    Raises SyntaxError where the source cannot be parsed; empty where the call is not found in it.
    """
    return dict(_argument_lines(*call, names))


def lines_of(places: Places, thing: Any) -> dict[str, str]:
    """The same of the call that made an object; empty where a library made it, or the source is not known."""
    with contextlib.suppress(Exception):  # a script may be of any form
        call = places.call(thing)
        names = list(inspect.signature(type(thing).__init__).parameters)[1:]
        return {} if call is None else argument_lines(call, tuple(names))
    return {}


@functools.lru_cache(maxsize=256)
def _argument_lines(code: CodeType, instruction: int, names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    position = next(islice(code.co_positions(), instruction // 2, None), None)
    for node in ast.walk(_tree(code.co_filename)):
        if isinstance(node, ast.Call) and position == (
            *(node.lineno, node.end_lineno),
            *(node.col_offset, node.end_col_offset),
        ):
            file = relative(code.co_filename)
            return tuple((name, f"{file}:{line}") for name, line in islice(_given(node, names), _ARGUMENTS))
    return ()


def _given(call: ast.Call, names: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    for name, argument in zip(names, call.args, strict=False):
        if isinstance(argument, ast.Starred):
            break
        yield name, argument.lineno
    yield from ((word.arg, word.lineno) for word in call.keywords if word.arg)


@functools.lru_cache(maxsize=16)
def _tree(file: str) -> ast.AST:
    return ast.parse("".join(linecache.getlines(file)))

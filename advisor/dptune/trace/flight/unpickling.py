"""A pickle read without executing it: an opcode that builds anything but plain data is refused.

Python's own unpickler calls what the file names. Here the opcodes are only decoded (`pickletools`), and a small stack
builds dicts, lists, tuples, strings, numbers, booleans and None.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from itertools import takewhile
from typing import Any, BinaryIO

_MARK = object()
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_VALUES = frozenset(
    (
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "STRING", "BINSTRING", "SHORT_BINSTRING"),
    )
)
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PUT, _GET = ("PUT", "BINPUT", "LONG_BINPUT"), ("GET", "BINGET", "LONG_BINGET")


class PickleError(ValueError):
    """A pickle that is damaged, or holds more than plain data."""


def plain(file: BinaryIO) -> Any:
    """The value of a pickle of plain data. Raises PickleError with what is wrong."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    try:
        # That it breaks off before STOP, genops raises as a ValueError.
        for opcode, argument, _ in takewhile(lambda each: each[0].name != "STOP", pickletools.genops(file)):
            _do(opcode.name, argument, stack, memo)
        return stack.pop()
    except PickleError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, OverflowError) as error:
        raise PickleError(f"the pickle is damaged: {error}") from None


def _do(name: str, argument: Any, stack: list[Any], memo: dict[int, Any]) -> None:
    """One opcode."""
    if name in _VALUES:
        stack.append(argument)
    elif name in _CONSTANTS:
        stack.append(_CONSTANTS[name])
    elif name in _EMPTY:
        stack.append(_EMPTY[name]())
    elif name == "MARK":
        stack.append(_MARK)
    elif name in _TUPLES:
        count = _TUPLES[name]
        stack[-count:] = [tuple(stack[-count:])]
    elif name in ("TUPLE", "LIST", "DICT"):
        values = _since_mark(stack)
        stack.append(tuple(values) if name == "TUPLE" else values if name == "LIST" else _pairs(values))
    elif name in ("APPEND", "APPENDS"):
        values = _since_mark(stack) if name == "APPENDS" else [stack.pop()]
        _of_type(stack[-1], list).extend(values)
    elif name in ("SETITEM", "SETITEMS"):
        values = _since_mark(stack) if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
        _of_type(stack[-1], dict).update(_pairs(values))
    elif name in _PUT or name == "MEMOIZE":
        memo[len(memo) if name == "MEMOIZE" else int(argument)] = stack[-1]
    elif name in _GET:
        stack.append(memo[int(argument)])
    elif name not in ("PROTO", "FRAME"):
        raise PickleError(f"the pickle holds more than plain data ({name}), and is not executed")


def _since_mark(stack: list[Any]) -> list[Any]:
    """What was put since the last mark, taken off with it."""
    values: list[Any] = []
    while (value := stack.pop()) is not _MARK:
        values.append(value)
    return values[::-1]


def _pairs(values: list[Any]) -> dict[Any, Any]:
    return dict(zip(values[::2], values[1::2], strict=True))


def _of_type(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise PickleError("the pickle is damaged: it appends to something other than a container")
    return value

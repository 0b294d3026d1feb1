"""How many epochs the script plans: the passes of the loop around the one that draws batches.

From the source of the script's functions that run, and the values that its variables have there. Nothing of the script
is called: numbers, variables, attributes that are no properties, and entries of dictionaries are read.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
from collections.abc import Callable, Sequence
from operator import add, mul, sub
from types import FrameType
from typing import Any

from torch.utils.data import DataLoader

from dptune.capture.injected.observe.places import is_the_users

_RANGES = ("range", "trange")  # of Python and of tqdm
_LIMITS = (*_RANGES, "islice", "zip", "take", "head")  # what a loop over batches may end by before its loader does
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_OPERATORS: dict[type, Callable[[int, int], int]] = {ast.Add: add, ast.Sub: sub, ast.Mult: mul}


def planned_epochs(frame: FrameType | None) -> int | None:
    """None where the lines that lead to a frame are in no loop over a data loader, or that is in none with a count."""
    draws = False
    while frame is not None:
        if is_the_users(frame.f_code.co_filename):
            for iterated in _iterated(frame.f_code.co_filename, frame.f_code.co_firstlineno, frame.f_lineno):
                if not draws:
                    draws = any(_is_loader(_value(node, frame)) for node in ast.walk(iterated))
                elif (count := _passes(iterated, frame)) is not None:
                    return count
        frame = frame.f_back
    return None


def ends_early(frame: FrameType | None) -> bool | None:
    """Whether the loop over a data loader around the lines that lead to a frame may end before its loader.

    It has `break` or `return`, or a limit such as `islice(loader, steps)`. None where they are in no such loop.
    """
    while frame is not None:
        if is_the_users(frame.f_code.co_filename):
            for loop in _loops(frame.f_code.co_filename, frame.f_code.co_firstlineno, frame.f_lineno):
                nodes = list(ast.walk(loop.iter))
                if any(_is_loader(_value(node, frame)) for node in nodes):
                    limited = any(isinstance(node, ast.Call) and _name(node.func) in _LIMITS for node in nodes)
                    return limited or any(_leaves(statement, frame) for statement in loop.body)
        frame = frame.f_back
    return None


def _leaves(node: ast.AST, frame: FrameType, *, inner: bool = False) -> bool:
    """`inner`: in a loop within the loop, whose `break` does not count."""
    if isinstance(node, ast.Return) or (isinstance(node, ast.Break) and not inner):
        return True
    if isinstance(node, _DEFINITIONS):
        return False
    if isinstance(node, ast.If) and _value(node.test, frame) is False:  # such as `if args.dry_run: break`
        return any(_leaves(child, frame, inner=inner) for child in node.orelse)
    inner = inner or isinstance(node, (ast.For, ast.AsyncFor, ast.While))
    return any(_leaves(child, frame, inner=inner) for child in ast.iter_child_nodes(node))


def _iterated(file: str, first: int, line: int) -> list[ast.expr]:
    """What the loops around a line of a function that begins at the line `first` iterate over, innermost first."""
    return [loop.iter for loop in _loops(file, first, line)]


def _loops(file: str, first: int, line: int) -> list[ast.For]:
    loops = [
        node
        for node in ast.walk(_tree(file))
        if isinstance(node, ast.For)
        and node.lineno >= first
        and node.body[0].lineno <= line <= (node.body[-1].end_lineno or 0)
    ]
    return sorted(loops, key=lambda loop: -loop.lineno)


@functools.lru_cache(maxsize=16)
def _tree(file: str) -> ast.Module:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def _is_loader(value: Any) -> bool:
    """Also something that holds a data loader, such as a progress bar."""
    held = getattr(value, "__dict__", None)
    return any(isinstance(each, DataLoader) for each in (value, *(held.values() if type(held) is dict else ())))


def _passes(iterated: ast.expr, frame: FrameType) -> int | None:
    for node in ast.walk(iterated):
        if isinstance(node, ast.Call) and _name(node.func) in _RANGES and not node.keywords:
            numbers = [_value(argument, frame) for argument in node.args]
            if 0 < len(numbers) <= 3 and all(type(number) is int for number in numbers):
                return len(range(*numbers))
    return None


def _name(function: ast.expr) -> str:
    return str(getattr(function, "id", "") or getattr(function, "attr", ""))


def _value(node: ast.AST, frame: FrameType) -> Any:
    """None where it cannot be read without running code of the script."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute):
        return inspect.getattr_static(_value(node.value, frame), node.attr, None)
    if isinstance(node, ast.Subscript):
        holder, key = _value(node.value, frame), _value(node.slice, frame)
        return holder.get(key) if type(holder) is dict and isinstance(key, str) else None
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        numbers = _value(node.left, frame), _value(node.right, frame)
        return _OPERATORS[type(node.op)](*numbers) if all(type(number) is int for number in numbers) else None
    return None


def trainer_epochs(trainers: Sequence[Any]) -> int:
    """The epochs that a Trainer of transformers or Lightning plans; 0 where none does, or steps end it earlier."""
    found = [0]
    for trainer in trainers:
        epochs = getattr(getattr(trainer, "state", None), "num_train_epochs", None)  # of transformers
        if epochs is None and getattr(trainer, "max_steps", None) in (-1, None):
            epochs = getattr(trainer, "max_epochs", None)
        found += [epochs] if type(epochs) is int else []
    return max(found)

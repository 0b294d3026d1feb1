"""Finds calls of dropout functions that stay active in evaluation mode.

In warm-up steps, by the calls that methods of the script's modules make: `dropout(x, p)` without `training`, and
`scaled_dot_product_attention` with a `dropout_p` that does not depend on the mode. Calls that the mode decides, in the
function or in the modules that call it, are left out, and modules and functions that are named after repeated sampling.
Where an argument of the function decides, the line counts only once it has run in evaluation mode.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, TypeGuard

import torch
from torch import nn
from torch.nn import functional

from dptune.capture.injected.observe.places import Places, is_the_users, users_line
from dptune.capture.injected.observe.training_mode import is_collecting
from dptune.capture.injected.observe.validation import source_of
from dptune.capture.injected.observe.wrapped_operators import WrappedOperators
from dptune.runfile.training_mode import ActiveDropoutFacts

_FUNCTIONS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
_ATTENTION = "scaled_dot_product_attention"
_USUAL = 0.5  # the probability where none is given
_LINES = 16
_LEAVES = (ast.Return, ast.Raise)


class ActiveDropouts:
    """The lines, with what they call."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._operators = WrappedOperators(self._note)
        self._lines: dict[str, ActiveDropoutFacts | None] = {}  # None: it heeds the mode
        self._by_argument: set[str] = set()  # lines where an argument decides

    def begin(self) -> None:
        """Watch from now on, but no code that torch.compile reads."""
        if not self._places.compiled:
            for name in (*_FUNCTIONS, _ATTENTION):
                self._operators.wrap(functional, name)

    def end(self) -> None:
        """Watch no more."""
        self._operators.unwrap()

    def facts(self) -> list[ActiveDropoutFacts]:
        """The facts of each line."""
        found = [facts for facts in self._lines.values() if facts is not None]
        return [facts for facts in found if facts.evaluated or facts.where not in self._by_argument]

    def _note(self, operator: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        frame = sys._getframe(2)
        module = frame.f_locals.get("self") if is_the_users(frame.f_code.co_filename) else None
        if not isinstance(module, nn.Module) or torch.compiler.is_compiling():
            return
        probability = _probability(operator, args, kwargs)
        where = users_line(frame)
        if not probability or where is None or len(self._lines) >= _LINES:
            return
        if where not in self._lines:
            heeds = _heeds_mode(frame, operator) or any(map(is_collecting, (type(module).__name__, *_callers(frame))))
            facts = ActiveDropoutFacts(where, operator, type(module).__name__, probability)
            self._lines[where] = None if heeds else facts
            if _argument_decides(frame, operator):
                self._by_argument.add(where)
        known = self._lines[where]
        if known is not None and not module.training:
            known.evaluated = True


def _probability(operator: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """Of a value to be dropped; 0 where the mode is given, or none is dropped."""
    if operator == _ATTENTION:
        given = args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)
    elif "training" in kwargs or len(args) > 2:
        return 0.0
    else:
        given = args[1] if len(args) > 1 else kwargs.get("p", _USUAL)
    return float(given) if isinstance(given, (int, float)) else 0.0


def _callers(frame: FrameType | None, most: int = 12) -> Iterator[str]:
    for _ in range(most):
        if frame is None:
            return
        yield frame.f_code.co_name
        frame = frame.f_back


def _heeds_mode(frame: FrameType, operator: str) -> bool:
    """Whether the mode decides about the call or its probability, in the function or the modules that call it."""
    body = source_of(frame.f_code)
    module = frame.f_locals["self"]
    if body is None or type(module).train is not nn.Module.train:
        return True
    if operator == _ATTENTION and "training" in ast.unparse(body):
        return True
    names = {node.id for each in _probabilities(body, frame, operator) for node in ast.walk(each) if _is_name(node)}
    set_by_mode = (
        node
        for node in ast.walk(body)
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.If))
        and "train" in ast.unparse(node.test if isinstance(node, ast.If) else node)
    )
    targets = {each.id for node in set_by_mode for each in ast.walk(node) if _is_name(each, ast.Store)}
    return bool(names & targets) or any(map(_mode_decides, _of_modules(frame)))


def _of_modules(frame: FrameType | None, most: int = 40) -> Iterator[FrameType]:
    """The frames of the script's modules, from the call outwards."""
    for _ in range(most):
        if frame is None:
            return
        if is_the_users(frame.f_code.co_filename) and isinstance(frame.f_locals.get("self"), nn.Module):
            yield frame
        frame = frame.f_back


def _mode_decides(frame: FrameType) -> bool:
    """Whether a condition on the mode is around the line of the frame, or leaves the function before it."""
    for node in _conditions(frame):
        if "train" in ast.unparse(_condition(node)) and (
            _is_around(node, frame.f_lineno)
            or (isinstance(node, ast.If) and node.lineno < frame.f_lineno and isinstance(node.body[-1], _LEAVES))
        ):
            return True
    return False


def _argument_decides(frame: FrameType, operator: str) -> bool:
    """Whether the call or its probability depends on an argument of the function."""
    code = frame.f_code
    arguments = {*code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]}
    around = [_condition(node) for node in _conditions(frame) if _is_around(node, frame.f_lineno)]
    read = [*around, *_probabilities(source_of(frame.f_code), frame, operator)]
    return any(node.id in arguments for each in read for node in ast.walk(each) if _is_name(node))


def _conditions(frame: FrameType) -> Iterator[ast.If | ast.IfExp | ast.BoolOp]:
    body = source_of(frame.f_code)
    for node in ast.walk(body) if body is not None else ():
        if isinstance(node, (ast.If, ast.IfExp, ast.BoolOp)):
            yield node


def _probabilities(body: ast.AST | None, frame: FrameType, operator: str) -> Iterator[ast.expr]:
    """What the call in the line of the frame passes as the probability."""
    at = 4 if operator == _ATTENTION else 1
    for node in ast.walk(body) if body is not None else ():
        if isinstance(node, ast.Call) and _is_around(node, frame.f_lineno):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name == operator:
                yield from node.args[at : at + 1]
                yield from (each.value for each in node.keywords if each.arg in ("p", "dropout_p"))


def _is_name(node: ast.AST, context: type[ast.expr_context] = ast.Load) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, context)


def _condition(node: ast.If | ast.IfExp | ast.BoolOp) -> ast.AST:
    return node if isinstance(node, ast.BoolOp) else node.test


def _is_around(node: ast.stmt | ast.expr, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)

"""Finds calls of dropout functions that stay active in evaluation mode.

In warm-up steps, by the calls that methods of the script's modules make: `dropout(x, p)` without `training`, and
`scaled_dot_product_attention` with a `dropout_p` that does not depend on the mode. Calls behind a condition on the mode
are left out, and modules and functions that are named after repeated sampling.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from dptune.capture.injected.observe.places import Places, is_the_users, users_line
from dptune.capture.injected.observe.training_mode import is_collecting
from dptune.capture.injected.observe.validation import definition, tree_of
from dptune.capture.injected.observe.wrapped_operators import WrappedOperators
from dptune.runfile.training_mode import ActiveDropoutFacts

_FUNCTIONS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
_ATTENTION = "scaled_dot_product_attention"
_USUAL = 0.5  # the probability where none is given
_LINES = 16


class ActiveDropouts:
    """The lines, with what they call."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._operators = WrappedOperators(self._note)
        self._lines: dict[str, ActiveDropoutFacts | None] = {}  # None: it heeds the mode

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
        return [facts for facts in self._lines.values() if facts is not None]

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
    """Whether a condition on the mode is around the call; of attention, whether the function reads the mode at all."""
    code = frame.f_code
    body = definition(tree_of(code.co_filename), code.co_name, code.co_firstlineno)
    if body is None:
        return True
    if operator == _ATTENTION:
        return "training" in ast.unparse(body)
    around = (node for node in ast.walk(body) if isinstance(node, (ast.If, ast.IfExp, ast.BoolOp)))
    return any(_is_around(node, frame.f_lineno) and "train" in ast.unparse(_condition(node)) for node in around)


def _condition(node: ast.If | ast.IfExp | ast.BoolOp) -> ast.AST:
    return node if isinstance(node, ast.BoolOp) else node.test


def _is_around(node: ast.stmt | ast.expr, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)

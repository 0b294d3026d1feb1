"""Finds conditions that compare a score with the best one so far, and the value that this rank compares with.

The loops around the optimizer step are read, with the functions of the script that they call. Found: `if loss < best`
and its like, where the branches end the training, keep weights or change the learning rate. What only one rank runs is
left out, by the names in the conditions around it. Where a collective call sends whether to stop, the ranks agree when
training ends. Nothing of the script is called: variables and attributes are read.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType, FunctionType, MethodType
from typing import Any

import torch

from dptune.capture.injected.observe.places import is_the_users, users_place
from dptune.capture.injected.observe.save_calls import OF_RANK
from dptune.capture.injected.observe.validation import (
    UNKNOWN,
    loops_around,
    scope_of_call,
    script_function,
    source_of,
    value_of,
)
from dptune.runfile.decisions import DecisionFacts

_FUNCTIONS = 60  # that are read
_DECISIONS = 8
_HOPS = 3  # from a counter to what is sent
_BEST = re.compile(r"(?i)best|lowest|highest|smallest|(min|max)(imum)?_(val|loss|score|acc|metric|error|dev)")
_ENDS = re.compile(r"(?i)stop|patien|wait|counter|bad_epochs|no_improve|since|stale|strikes|misses")
_COLLECTIVE = re.compile(r"(?i)reduce|broadcast|gather|sync|consensus|trigger|all_agree|any_rank|all_ranks")
_KEEPS = re.compile(r"(?i)save|state_dict|deepcopy|checkpoint|snapshot|keep|store")
_RATE = re.compile(r"""(?i)\[['"]lr['"]\]|(^|_|\.)(lr|learning_rate)$|(reduce|decay|lower|drop)_(lr|rate)""")
_NOT_RUN = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_LEAVES = (ast.Return, ast.Continue, ast.Break, ast.Raise)
_ORDERS = (ast.Lt, ast.Gt, ast.LtE, ast.GtE)
_USUAL = (0.0, 1.0, -1.0)  # what such a variable may start with
_LARGE = 1e6

Scope = Mapping[str, Any]


@dataclass
class _Reading:
    found: dict[tuple[str, str], DecisionFacts] = field(default_factory=dict)
    seen: set[Any] = field(default_factory=set)
    tests: list[ast.expr] = field(default_factory=list)  # of the loops around the step
    more: set[tuple[str, str]] = field(default_factory=set)  # that keep weights or change the rate
    agrees: bool = False  # the ranks, when training ends


def decisions(frame: FrameType | None, step: int) -> list[DecisionFacts]:
    """The decisions of the training loop around a frame whose best score is known by now."""
    reading = _Reading()
    while frame is not None:
        if is_the_users(frame.f_code.co_filename) and frame.f_code not in reading.seen:
            reading.seen.add(frame.f_code)
            loops = loops_around(frame)
            reading.tests += [loop.test for loop in loops if isinstance(loop, ast.While)]
            for loop in loops[-1:]:  # the outermost
                reading.agrees |= _agrees(loop)
                _read(loop.body, {**frame.f_globals, **frame.f_locals}, frame.f_code.co_filename, reading)
        frame = frame.f_back
    for facts in reading.found.values():
        facts.step = step
        facts.ends = facts.ends and not reading.agrees
    return [facts for key, facts in reading.found.items() if facts.ends or key in reading.more][:_DECISIONS]


def _read(body: Sequence[ast.stmt], scope: Scope, file: str, reading: _Reading) -> None:
    """Read statements as far as every rank runs them."""
    for statement in body:
        if isinstance(statement, _NOT_RUN):
            continue
        head = [getattr(statement, name) for name in ("test", "iter") if hasattr(statement, name)]
        for call in _calls([*head, *getattr(statement, "items", [])] if hasattr(statement, "body") else [statement]):
            _read_call(call, scope, file, reading)
        if isinstance(statement, ast.If):
            if OF_RANK.search(ast.unparse(statement.test)):
                if any(isinstance(each, _LEAVES) for each in statement.body):
                    return
                continue
            _note(statement, body, scope, file, reading)
        for name in ("body", "orelse", "finalbody"):
            _read(getattr(statement, name, []), scope, file, reading)


def _read_call(call: ast.Call, scope: Scope, file: str, reading: _Reading) -> None:
    found = value_of(call.func, scope)
    if found is UNKNOWN or not callable(found):
        return
    if not isinstance(found, (FunctionType, MethodType)):  # an object that is called, as `stopper(loss)`
        method = inspect.getattr_static(type(found), "__call__", None)
        if isinstance(found, (type, torch.nn.Module)) or not isinstance(method, FunctionType):
            return
        found = MethodType(method, found)
    called = script_function(found)
    if called is None:
        return
    code = called.__code__
    if code in reading.seen or len(reading.seen) >= _FUNCTIONS:
        return
    reading.seen.add(code)
    node = source_of(code)
    if node is not None and not OF_RANK.search(" ".join(map(ast.unparse, getattr(node, "decorator_list", [])))):
        reading.agrees |= _agrees(node)
        inner = scope_of_call(call, found, called, scope)
        _read(node.body, inner, code.co_filename, reading)  # type: ignore[attr-defined]


def _calls(nodes: Sequence[ast.AST]) -> Iterator[ast.Call]:
    for node in nodes:
        if not isinstance(node, _NOT_RUN):
            yield from _calls([*ast.iter_child_nodes(node)])
            if isinstance(node, ast.Call):
                yield node


def _note(statement: ast.If, body: Sequence[ast.stmt], scope: Scope, file: str, reading: _Reading) -> None:
    for best in _compared(statement.test):
        value = _number(value_of(best, scope))
        if value is None or not math.isfinite(value) or value in _USUAL or abs(value) >= _LARGE:
            continue
        branches = [*statement.body, *statement.orelse]
        name = ast.unparse(best).removeprefix("self.")
        place = users_place(file, statement.lineno)
        ends, keeps = _ends(branches, body, reading.tests), _keeps(branches)
        facts = DecisionFacts(place or "", name, value, ends=ends, keeps=keeps)
        does_more = keeps or any(_RATE.search(each) for each in _texts(branches))
        if place and (ends or does_more):
            reading.found.setdefault((place, name), facts)
            reading.more |= {(place, name)} if does_more else set()


def _compared(test: ast.expr) -> Iterator[ast.Name | ast.Attribute]:
    """The best scores that a condition compares something computed with."""
    for node in ast.walk(test):
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], _ORDERS):
            sides = (node.left, node.comparators[0])
            for side, other in (sides, sides[::-1]):
                for each in ast.walk(side):
                    is_best = isinstance(each, (ast.Name, ast.Attribute)) and _BEST.search(_last(each))
                    if is_best and not isinstance(other, ast.Constant):
                        yield each  # type: ignore[misc]


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _ends(branches: Sequence[ast.stmt], body: Sequence[ast.stmt], tests: Sequence[ast.expr]) -> bool:
    """Whether they leave the loop, or count towards it and a condition or the caller may then leave it."""
    inside = [node for each in branches for node in ast.walk(each)]
    if any(isinstance(node, ast.Break) for node in inside):
        return True
    assigned = [ast.unparse(target) for node in inside for target in _targets(node)]
    if not any(map(_ENDS.search, assigned)):
        return False
    around = [node for each in (*branches, *body) for node in ast.walk(each)]
    conditions = [node.test for node in around if isinstance(node, (ast.If, ast.IfExp, ast.While))]
    returned = [node.value for node in around if isinstance(node, ast.Return) and node.value is not None]
    read = " ".join(map(ast.unparse, (*conditions, *returned, *tests)))
    return any("stop" in name.lower() for name in assigned) or any(
        _ENDS.search(name) and name in read for name in assigned
    )


def _agrees(code: ast.AST) -> bool:
    """Whether a collective call sends what counts towards the end of training."""
    nodes = [*ast.walk(code)]
    sent = [node for node in nodes if isinstance(node, ast.Call) and _COLLECTIVE.search(_last(node.func))]
    if not sent:
        return False
    counting: set[str] = set()
    for _ in range(_HOPS):
        for node in nodes:
            if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and node.value is not None:
                if _counts(node.value, counting):
                    counting |= {ast.unparse(target) for target in _targets(node)}
            elif isinstance(node, ast.If) and _counts(node.test, counting):
                counting |= {ast.unparse(target) for each in ast.walk(node) for target in _targets(each)}
    return any(_counts(argument, counting) for call in sent for argument in (*call.args, *call.keywords))


def _counts(node: ast.AST, counting: set[str]) -> bool:
    parts = [ast.unparse(each) for each in ast.walk(node) if isinstance(each, (ast.Name, ast.Attribute))]
    return any(part in counting or _ENDS.search(part) for part in parts)


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, (ast.AugAssign, ast.AnnAssign)) else []


def _keeps(branches: Sequence[ast.stmt]) -> bool:
    """Whether they call something that keeps weights, and are not for one rank."""
    return any(
        isinstance(node, ast.Call) and _KEEPS.search(_last(node.func)) for each in branches for node in ast.walk(each)
    )


def _texts(statements: Sequence[ast.stmt]) -> Iterator[str]:
    """What they assign to, and what they call."""
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
                yield ast.unparse(node)
            elif isinstance(node, ast.Call):
                yield ast.unparse(node.func)


def _number(value: Any) -> float | None:
    """A number, or a tensor of one that is not on a device."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if type(value) is torch.Tensor and value.numel() == 1 and value.device.type == "cpu":
        return float(value.detach())
    return float(value) if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0 else None

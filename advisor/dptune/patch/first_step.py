"""The micro-batches of the first optimizer step: with a static graph, DDP must synchronize all of them.

With `static_graph=True` DistributedDataParallel learns the graph in the first backward passes that it synchronizes. A
first step under `no_sync` fails inside its first backward pass, or leaves gradients unsynchronized from then on.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from dptune.knobs import knob
from dptune.patch.source import EditError

_UNKNOWN = (
    "static_graph=True requires every micro-batch of the first step to be synchronized, and the first step could not "
    "be identified"
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_NUMBERS = ("step", "step_number")


def may_be_static(tree: ast.Module, made: ast.Call) -> bool:
    """Whether the DistributedDataParallel that the call `made` creates may have a static graph."""
    if any(isinstance(node, ast.Attribute) and node.attr == "_set_static_graph" for node in ast.walk(tree)):
        return True
    first = min(knob("ddp.static_graph").positions)
    if len(made.args) > first or any(isinstance(arg, ast.Starred) for arg in made.args):
        return True
    given = [word.value for word in made.keywords if word.arg == "static_graph"]
    given += [value for word in made.keywords if word.arg is None for value in _named(tree, word.value, "static_graph")]
    return any(not (isinstance(value, ast.Constant) and not value.value) for value in given)


def _named(tree: ast.Module, mapping: ast.expr, key: str) -> list[ast.expr]:
    """What `**mapping` may give for a key: none if the file makes the mapping of dictionaries without that key."""
    if isinstance(mapping, ast.IfExp):
        return [*_named(tree, mapping.body, key), *_named(tree, mapping.orelse, key)]
    if isinstance(mapping, ast.Dict) and all(isinstance(each, ast.Constant) for each in mapping.keys):
        pairs = zip(mapping.keys, mapping.values, strict=True)
        return [value for each, value in pairs if isinstance(each, ast.Constant) and each.value == key]
    if not isinstance(mapping, ast.Name):
        return [mapping]
    uses = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == mapping.id]
    made = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and node.targets[0] in uses]
    handed_on = [word.value for node in ast.walk(tree) if isinstance(node, ast.Call) for word in node.keywords]
    known = {id(assignment.targets[0]) for assignment in made} | {id(value) for value in handed_on}
    if not made or any(id(use) not in known for use in uses) or any(isinstance(each.value, ast.Name) for each in made):
        return [mapping]  # something else may change it
    return [value for assignment in made for value in _named(tree, assignment.value, key)]


def first_step(
    tree: ast.Module, around: Sequence[ast.AST], found: ast.If | ast.For, is_last: ast.expr
) -> tuple[ast.expr, tuple[ast.For, str] | None]:
    """The test for a micro-batch of the first step, and the loop that must count steps for it, if any.

    It may also hold for the first step of each epoch. `around` are the statements around the backward pass, from the
    innermost out; `found` is the loop of micro-batches, or the test for the last one. Raises EditError if the first
    step cannot be identified.
    """
    if isinstance(found, ast.For):
        return _by_steps(tree, around[list(around).index(found) + 1 :])
    return _by_count(tree, around, is_last), None


def _by_steps(tree: ast.Module, around: Sequence[ast.AST]) -> tuple[ast.expr, tuple[ast.For, str] | None]:
    """By the number of the loop of steps, which is the innermost around that of micro-batches."""
    loop = next((statement for statement in around if isinstance(statement, (ast.For, ast.While, *_FUNCTIONS))), None)
    if not isinstance(loop, ast.For):
        raise EditError(_UNKNOWN)
    if (name := _counter(loop)).strip("_"):
        if _stores(loop.body, name):
            raise EditError(_UNKNOWN)
        return _read(f"{name} == 0"), None
    there = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for name in _NUMBERS:
        if name not in there:
            return _read(f"{name} == 0"), (loop, name)
    raise EditError(_UNKNOWN)


def _by_count(tree: ast.Module, around: Sequence[ast.AST], is_last: ast.expr) -> ast.expr:
    """Of a test like `(number + 1) % accumulate == 0`, by that number."""
    for test in is_last.values if isinstance(is_last, ast.BoolOp) and isinstance(is_last.op, ast.Or) else [is_last]:
        match test:
            case ast.Compare(ast.BinOp(number, ast.Mod(), each), [ast.Eq()], [ast.Constant(value=0)]) | ast.UnaryOp(
                ast.Not(), ast.BinOp(number, ast.Mod(), each)
            ) if _starts_at(tree, around, number) in (0, 1):
                return ast.Compare(number, [ast.LtE()], [each])
    raise EditError(_UNKNOWN)


def _starts_at(tree: ast.Module, around: Sequence[ast.AST], number: ast.expr) -> int | None:
    """What an expression like `number + 1` is at the first micro-batch; None where that is not known."""
    added = 0
    while isinstance(number, ast.BinOp) and isinstance(number.op, ast.Add) and _whole(number.right) is not None:
        added, number = added + (_whole(number.right) or 0), number.left
    if not isinstance(number, ast.Name):
        return None
    for loop in around:
        if isinstance(loop, ast.For) and _counter(loop) == number.id:
            return None if _stores(loop.body, number.id) else added
    made = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and _is_of(node, number.id)]
    others = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == number.id]
    stored = [node for node in others if isinstance(node.ctx, ast.Store)]
    counted = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and node.target.id == number.id
    ]
    if len(made) != 1 or len(stored) != len(made) + len(counted):
        return None
    start = _whole(made[0].value)
    return None if start is None else start + added


def _counter(loop: ast.For) -> str:
    """The name that a loop counts from 0 on by; empty where it does not."""
    match loop:
        case ast.For(target=ast.Name(id=name), iter=ast.Call(func=ast.Name(id="range"), args=[_], keywords=[])):
            return name
        case ast.For(
            target=ast.Tuple(elts=[ast.Name(id=name), _]),
            iter=ast.Call(func=ast.Name(id="enumerate"), args=[_], keywords=[]),
        ):
            return name
    return ""


def _stores(statements: Sequence[ast.stmt], name: str) -> bool:
    nodes = (node for statement in statements for node in ast.walk(statement))
    return any(isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store) for node in nodes)


def _is_of(node: ast.Assign, name: str) -> bool:
    return len(node.targets) == 1 and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name


def _whole(value: ast.expr) -> int | None:
    return value.value if isinstance(value, ast.Constant) and type(value.value) is int else None


def _read(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body

"""Where a script calls fully_shard: on which model, in which statements, with which arguments."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from dptune.patch.rewriting import block_of, calls_in_tree, parents
from dptune.patch.source import AlreadyMadeError, EditError, Source

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
KNOB = "fsdp.reshard_after_forward"  # any of the call's


@dataclass(frozen=True)
class Sharding:
    """All calls of fully_shard of a script: `root` is the statement that shards the whole `model`, the last of them.

    `units` are the statements before it that shard modules and do nothing else. `scope` is the function that holds
    them, None for the module.
    """

    scope: ast.FunctionDef | ast.AsyncFunctionDef | None
    root: ast.stmt
    call: ast.Call
    model: str
    units: list[ast.stmt]


def sharding_of(source: Source) -> Sharding:
    """The calls of a script; raises EditError with a sentence for forms that are not understood."""
    tree = source.tree
    calls = calls_in_tree(source, KNOB)
    if not calls:
        raise AlreadyMadeError("the file does not call fully_shard")
    above = parents(tree)
    paths = [_path(above, call) for call in calls]
    root = _statement(paths[-1])
    call, line = calls[-1], calls[-1].lineno
    scopes = {id(_scope(path)): _scope(path) for path in paths}
    if len(scopes) > 1:
        raise EditError("the file calls fully_shard in several functions: edit it by hand")
    scope = next(iter(scopes.values()))
    if isinstance(scope, ast.Lambda):
        raise EditError("fully_shard is called in a lambda: edit it by hand")
    model = sharded_by(call)
    if not isinstance(model, (ast.Name, ast.Attribute)) or not _is_plain(root, call, model):
        raise EditError(f"line {line} does not call fully_shard on the whole model in a statement of its own")
    if any(isinstance(node, (ast.For, ast.While, ast.AsyncFor)) for node in _within(paths[-1], scope)):
        raise EditError(f"the last call of fully_shard, on line {line}, is in a loop, so no call is on the whole model")
    block = block_of(tree, root)
    units: list[ast.stmt] = []
    for path, made in zip(paths[:-1], calls[:-1], strict=True):
        statement = next((node for node in path if isinstance(node, ast.stmt) and node in block), None)
        if statement is None:
            raise EditError(f"line {made.lineno} and line {line} call fully_shard in different blocks of the script")
        if statement not in units:
            units.append(statement)
    name = ast.unparse(model)
    for statement in units:
        _check_only_shards(statement, calls, name)
    function = scope if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)) else None
    return Sharding(function, root, call, name, units)


def sharded_by(call: ast.Call) -> ast.expr | None:
    """What a call of fully_shard shards."""
    given = [word.value for word in call.keywords if word.arg == "module"]
    return call.args[0] if call.args and not isinstance(call.args[0], ast.Starred) else next(iter(given), None)


def arguments_of(tree: ast.AST, call: ast.Call) -> dict[str, ast.expr]:
    """The arguments of a call by name, but for the module, with those of a dictionary that the script makes once."""
    found: dict[str, ast.expr] = {}
    if len(call.args) > 1:
        raise EditError(f"line {call.lineno} passes arguments of fully_shard by position")
    for word in call.keywords:
        found |= {word.arg: word.value} if word.arg else mapping_of(tree, word.value)[1]
    return {name: value for name, value in found.items() if name != "module"}


def mapping_of(tree: ast.AST, value: ast.expr) -> tuple[ast.expr, dict[str, ast.expr]]:
    """The dictionary that `**value` passes, as the script writes it, and what is in it; raises EditError otherwise."""
    made = value
    if isinstance(value, ast.Name):
        stores = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == value.id]
        written = [n for n in ast.walk(tree) if isinstance(n, (ast.Assign, ast.AnnAssign)) and _target(n) == value.id]
        handed_on = [w.value for n in ast.walk(tree) if isinstance(n, ast.Call) for w in n.keywords if w.arg is None]
        known = {id(use) for use in handed_on} | {id(_target_node(n)) for n in written}
        if len(written) != 1 or written[0].value is None or any(id(use) not in known for use in stores):
            raise EditError(f"the arguments in `**{value.id}` are not made in one place: edit it by hand")
        made = written[0].value
    if isinstance(made, ast.Dict) and all(isinstance(key, ast.Constant) for key in made.keys):
        pairs = zip(made.keys, made.values, strict=True)
        return made, {str(key.value): each for key, each in pairs if isinstance(key, ast.Constant)}
    is_dict = isinstance(made, ast.Call) and ast.unparse(made.func) == "dict" and not made.args
    if isinstance(made, ast.Call) and is_dict and all(word.arg for word in made.keywords):
        return made, {str(word.arg): word.value for word in made.keywords}
    raise EditError(f"`**{ast.unparse(value)}` passes arguments of fully_shard that cannot be read: edit it by hand")


def _target_node(node: ast.Assign | ast.AnnAssign) -> ast.expr:
    return node.targets[0] if isinstance(node, ast.Assign) else node.target


def _target(node: ast.Assign | ast.AnnAssign) -> str:
    return ast.unparse(_target_node(node))


def _path(above: dict[ast.AST, ast.AST], node: ast.AST) -> list[ast.AST]:
    """The nodes around a node, innermost first."""
    path = []
    while (parent := above.get(node)) is not None:
        path.append(parent)
        node = parent
    return path


def _statement(path: Sequence[ast.AST]) -> ast.stmt:
    return next(node for node in path if isinstance(node, ast.stmt))


def _scope(path: Sequence[ast.AST]) -> ast.AST | None:
    return next((node for node in path if isinstance(node, _FUNCTIONS)), None)


def _within(path: Sequence[ast.AST], scope: ast.AST | None) -> list[ast.AST]:
    """Of the nodes around, those inside the function."""
    at = next((at for at, node in enumerate(path) if node is scope), len(path))
    return list(path[:at])


def _is_plain(root: ast.stmt, call: ast.Call, model: ast.expr) -> bool:
    """Whether the statement is the call, returns it, or gives the model its result."""
    match root:
        case ast.Expr(value) | ast.Return(value):
            return value is call
        case ast.Assign([target], value):
            return value is call and ast.unparse(target) == ast.unparse(model)
    return False


def _check_only_shards(statement: ast.stmt, calls: Sequence[ast.Call], model: str) -> None:
    """Raises EditError for a statement that does anything else, or shards another model."""
    match statement:
        case ast.Expr(value) if any(value is call for call in calls):
            if _is_of(sharded_by(value), model):  # type: ignore[arg-type]
                return
        case ast.For(orelse=[]):
            for inner in statement.body:
                _check_inner(inner, calls)
            return
        case ast.If(orelse=[]):
            for inner in statement.body:
                _check_only_shards(inner, calls, model)
            return
    raise EditError(f"line {statement.lineno} does more than call fully_shard on parts of `{model}`")


def _check_inner(statement: ast.stmt, calls: Sequence[ast.Call]) -> None:
    """The same, in a loop over modules: what it shards may have any name."""
    match statement:
        case ast.Expr(value) if any(value is call for call in calls):
            return
        case ast.For(orelse=[]) | ast.If(orelse=[]):
            for inner in statement.body:
                _check_inner(inner, calls)
            return
        case ast.Continue() | ast.Pass():
            return
    raise EditError(f"line {statement.lineno}, in a loop that calls fully_shard, does something else")


def _is_of(value: ast.expr | None, model: str) -> bool:
    """Whether a module, or each in a list, is a part of the model."""
    if isinstance(value, (ast.List, ast.Tuple)):
        return all(_is_of(each, model) for each in value.elts)
    return value is not None and ast.unparse(value).startswith((f"{model}.", f"{model}["))

"""Larger units of fully_shard: whole blocks in place of the modules inside them, or several blocks in each call."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dptune.advice import Change
from dptune.patch.call import call_on
from dptune.patch.fsdp_calls import KNOB, sharded_by, sharding_of
from dptune.patch.rewriting import Rewriting, calls_in_tree, parents
from dptune.patch.source import AlreadyMadeError, EditError, Source

_LISTS = ("blocks", "blocks_to_shard", "unit_blocks")
_MODULES = ("module", "submodule")
_NUMBERS = ("first", "first_block")
_UNKNOWN = "line {} does not call fully_shard on the variable of a loop over modules, so its units cannot be changed"


class _Loop(NamedTuple):
    """A loop over modules: what its variable goes over, its tests, and the call for each module."""

    statement: ast.For
    name: str
    tests: list[ast.expr]
    call: ast.Call


def set_blocks_per_unit(source: Source, line: int, change: Change) -> None:
    """Make units of N whole blocks in the loop that calls fully_shard on `line`.

    `change.block` is the class of blocks; `change.now` is None where the units are modules inside blocks. Raises
    EditError with a sentence for other forms.
    """
    together = change.then
    if type(together) is not int or together < 1:
        raise EditError(f"fsdp.blocks_per_unit cannot be {together}")
    call = source.in_tree(call_on(source, line, KNOB))
    if call is None:
        raise EditError(_UNKNOWN.format(line))
    if change.now is None and not _is_in_loop(source.tree, call):
        _split(source, change.block, together)
        return
    loop = _loop_of(source.tree, call)
    if change.now is None:
        loop = _of_blocks(source, loop, change.block)
    elif together == change.now:
        raise AlreadyMadeError("the script already sets this value")
    else:
        _check(loop, [call])
    options = [ast.unparse(word) for word in loop.call.keywords if word.arg != "module"]
    variables = {node.id for node in ast.walk(loop.statement.target) if isinstance(node, ast.Name)}
    read = {node.id for word in loop.call.keywords for node in ast.walk(word.value) if isinstance(node, ast.Name)}
    if variables & read and together > 1:
        raise EditError(f"line {line} passes each module other arguments: group the blocks by hand")
    function, target, over = (
        ast.unparse(part) for part in (loop.call.func, loop.statement.target, loop.statement.iter)
    )
    change_of = Rewriting(source)
    if together == 1:
        tests = "".join(f"    if {ast.unparse(test)}:\n" for test in loop.tests)
        inner = "    " * (2 if loop.tests else 1)
        text = f"for {target} in {over}:\n{tests}{inner}{function}({', '.join([loop.name, *options])})\n"
    else:
        blocks, number = unused(source.tree, _LISTS), unused(source.tree, _NUMBERS)
        filtered = "".join(f" if {ast.unparse(test)}" for test in loop.tests)
        listed = (
            f"[{loop.name} for {target} in {over}{filtered}]" if filtered or target != loop.name else f"list({over})"
        )
        group = f"{blocks}[{number} : {number} + {together}]"
        text = (
            f"{blocks} = {listed}\n"
            f"for {number} in range(0, len({blocks}), {together}):\n"
            f"    {function}({', '.join([group, *options])})\n"
        )
    change_of.replace(loop.statement, text)
    change_of.make()


def _split(source: Source, block: str, together: int) -> None:
    """Shard each block before the whole model, which is the only unit so far."""
    found = sharding_of(source)
    name = unused(source.tree, _MODULES)
    if together != 1 or not block.isidentifier():
        raise EditError("the file has no loop that calls fully_shard on blocks: add one by hand")
    options = [ast.unparse(word) for word in found.call.keywords if word.arg != "module"]
    test = ast.unparse(is_block(source.tree, name, block))
    change = Rewriting(source)
    change.insert(
        found.root,
        f"for {name} in {found.model}.modules():\n    if {test}:\n"
        f"        {ast.unparse(found.call.func)}({', '.join([name, *options])})\n",
    )
    change.make()


def _is_in_loop(tree: ast.Module, call: ast.Call) -> bool:
    above, node = parents(tree), call
    while (parent := above.get(node)) is not None and not isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):
        if isinstance(parent, (ast.For, ast.While, ast.comprehension, ast.ListComp)):
            return True
        node = parent  # type: ignore[assignment]
    return False


def _loop_of(tree: ast.Module, call: ast.Call) -> _Loop:
    """The loop whose variable the call shards, with no other statement in it."""
    above = parents(tree)
    module = sharded_by(call)
    if isinstance(module, ast.Attribute) and isinstance(module.value, ast.Name):
        module = module.value  # `block.attention`: a part of each block
    statement = above[call]
    tests: list[ast.expr] = []
    node: ast.AST = statement
    while not isinstance(node, ast.For):
        node = above.get(node, tree)
        if isinstance(node, ast.If) and not node.orelse:
            tests.insert(0, node.test)
        elif not isinstance(node, ast.For):
            raise EditError(_UNKNOWN.format(call.lineno))
    names = [each.id for each in ast.walk(node.target) if isinstance(each, ast.Name)]
    if not isinstance(module, ast.Name) or module.id not in names or node.orelse or not isinstance(statement, ast.Expr):
        raise EditError(_UNKNOWN.format(call.lineno))
    if len(tests) > 1:
        tests = [ast.BoolOp(ast.And(), tests)]
    return _Loop(node, module.id, tests, call)


def _of_blocks(source: Source, loop: _Loop, block: str) -> _Loop:
    """The loop with a call for each block, where its calls shard modules inside blocks."""
    tree = source.tree
    if not block.isidentifier():
        raise EditError("the class of the model's blocks is unknown")
    shards = calls_in_tree(source, KNOB)
    is_part = ast.unparse(sharded_by(loop.call) or loop.call) != loop.name
    outer = loop if is_part else _around(tree, loop)
    if outer is not None:
        calls = [call for call in shards if any(node is call for node in ast.walk(outer.statement))]
        _check(outer, calls)
        return outer
    _check(loop, [loop.call])
    match loop.tests:
        case [ast.Call(func=ast.Name("isinstance"), args=[ast.Name(name), _])] if name == loop.name:
            if _method(loop.statement.iter) in ("modules", "named_modules"):
                return loop._replace(tests=[is_block(tree, name, block)])
    raise EditError(
        f"line {loop.call.lineno} shards modules inside blocks, in a loop in which `{block}` cannot be found"
    )


def _around(tree: ast.Module, loop: _Loop) -> _Loop | None:
    """The loop over blocks around one over the modules of each block; None where there is none."""
    above = parents(tree)
    over = loop.statement.iter
    if _method(over) not in ("", "children", "named_children"):
        return None
    node: ast.AST = loop.statement
    tests: list[ast.expr] = []
    while (node := above.get(node, tree)) and not isinstance(node, (ast.For, ast.Module, ast.FunctionDef)):
        if not isinstance(node, ast.If) or node.orelse:
            return None
        tests.insert(0, node.test)
    read = {each.id for each in ast.walk(over) if isinstance(each, ast.Name)}
    if not isinstance(node, ast.For) or not isinstance(node.target, ast.Name) or node.target.id not in read:
        return None
    return _Loop(node, node.target.id, tests, loop.call)


def _method(value: ast.expr) -> str:
    """The name of the method that is called; empty for other expressions."""
    return value.func.attr if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) else ""


def _check(loop: _Loop, calls: Sequence[ast.Call]) -> None:
    """Raises EditError where the loop does more than shard, or its calls have different arguments."""
    options = {", ".join(ast.unparse(word) for word in call.keywords) for call in calls}
    if len(options) > 1:
        raise EditError(f"the calls of fully_shard in the loop on line {loop.statement.lineno} have other arguments")
    for node in _leaves(loop.statement.body):
        if not isinstance(node, ast.Expr) or not any(node.value is call for call in calls):
            raise EditError(f"line {node.lineno}, in a loop that calls fully_shard, does something else")


def _leaves(statements: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in statements:
        if isinstance(statement, (ast.For, ast.If)) and not statement.orelse:
            yield from _leaves(statement.body)
        else:
            yield statement


def is_block(tree: ast.Module, name: str, block: str) -> ast.expr:
    """The test for a block: by its class where the file knows it, else by the name of that."""
    known = any(
        (isinstance(node, ast.ClassDef) and node.name == block)
        or (isinstance(node, ast.ImportFrom) and any((each.asname or each.name) == block for each in node.names))
        for node in tree.body
    )
    test = f"isinstance({name}, {block})" if known else f"type({name}).__name__ == {block!r}"
    return ast.parse(test, mode="eval").body


def unused(tree: ast.Module, names: Sequence[str]) -> str:
    """A name that the file does not use."""
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    used |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    for name in names:
        if name not in used:
            return name
    raise EditError(f"the file uses the names {', '.join(names)}: group the blocks by hand")

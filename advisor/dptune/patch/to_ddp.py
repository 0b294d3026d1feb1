"""DistributedDataParallel in place of fully_shard; forms that are not understood are refused."""

from __future__ import annotations

import ast

from dptune.patch.fsdp_calls import Sharding, arguments_of, sharding_of
from dptune.patch.imports import imported
from dptune.patch.model_uses import ModelUses, refuse_shards
from dptune.patch.rewriting import Rewriting, parents
from dptune.patch.source import EditError, Source

_MODULE, _CLASS = "torch.nn.parallel", "DistributedDataParallel"
_SAME = ("mesh", "reshard_after_forward", "shard_placement_fn")  # arguments that DDP needs no counterpart of
_ON_META = ("to_empty", "reset_parameters")
_MOVES = ("to", "cuda")


def sharding_function(source: Source) -> str:
    """The name of the function that shards a model and is not called in the file; empty where there is none."""
    scope = sharding_of(source).scope
    called = any(scope and ast.unparse(node).rpartition(".")[2] == scope.name for node in _names(source.tree))
    return "" if scope is None or called else scope.name


def replicate(source: Source, caller: Source | None = None) -> None:
    """Wrap the model in DistributedDataParallel where the script shards it, and remove all calls of fully_shard.

    `caller`: the file that calls the function that shards, where that is another one; it is edited, too. Raises
    EditError with a sentence where the script does what only a sharded model can.
    """
    tree = source.tree
    found = sharding_of(source)
    outer = source if caller is None else caller
    for each in (source, outer):
        refuse_shards(each.tree)
    arguments = arguments_of(tree, found.call)
    for unit in found.units:
        for call in ast.walk(unit):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == ast.unparse(found.call.func):
                arguments = {**arguments_of(tree, call), **arguments}
    for name, value in arguments.items():
        if name not in _SAME and not (isinstance(value, ast.Constant) and value.value is None):
            raise EditError(f"DistributedDataParallel has no counterpart of `{name}`, which the script passes")
    _check_device([source.tree, outer.tree], found)
    uses, change = ModelUses(outer), Rewriting(source)
    outside = change if caller is None else Rewriting(outer)
    returns = isinstance(found.root, ast.Return)
    if returns:
        assert found.scope is not None
        uses.returned(found.scope)
    elif _shards_for_callers(found):
        returns = True
        _assign_results(outer.tree, found, uses, outside)
    elif caller is not None:
        raise EditError(
            f"`{found.scope.name if found.scope else ''}` does more with the model than shard it: edit it by hand"
        )
    else:
        _check_trains_here(found)
        uses.follow(found.model, found.root, found.root.end_lineno or found.root.lineno)
    wrapper = imported(source, change, found.call, _MODULE, _CLASS, [found.root, *found.units])
    mesh = arguments.get("mesh")
    group = "" if mesh is None or _is_none(mesh) else f", process_group={ast.unparse(mesh)}.get_group()"
    wrapped = f"{wrapper}({found.model}{group})"
    start = "return " if returns else f"{found.model} = "
    change.replace(found.root, f"{start}{wrapped}\n")
    for unit in found.units:
        change.replace(unit, "")
    for attribute in uses.inner:
        outside.replace_value(attribute, f"{ast.unparse(attribute.value)}.module")
    for call in [node for node in ast.walk(outer.tree) if isinstance(node, ast.Call)]:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "full_tensor" and not call.args:
            outside.replace_call(call, ast.unparse(call.func.value))
    if caller is not None:
        outside.make()
    change.make()


def _check_trains_here(found: Sharding) -> None:
    """Raises EditError where a function shards a model that it was given, and neither calls nor returns it."""
    if found.scope is None or found.model.startswith("self."):
        return
    given = [argument.arg for argument in ast.walk(found.scope.args) if isinstance(argument, ast.arg)]
    calls = [node.func for node in ast.walk(found.scope) if isinstance(node, ast.Call)]
    returned = [node.value for node in ast.walk(found.scope) if isinstance(node, ast.Return) and node.value]
    if found.model in given and found.model not in map(ast.unparse, (*calls, *returned)):
        raise EditError(f"`{found.scope.name}` does more with `{found.model}` than shard it: edit it by hand")


def _names(tree: ast.Module) -> list[ast.expr]:
    return [node for node in ast.walk(tree) if isinstance(node, (ast.Name, ast.Attribute))]


def _shards_for_callers(found: Sharding) -> bool:
    """Whether a function shards the model of its caller, and neither uses nor returns it afterwards."""
    if found.scope is None or found.model.startswith("self."):
        return False
    given = [argument.arg for argument in ast.walk(found.scope.args) if isinstance(argument, ast.arg)]
    after = [node for node in ast.walk(found.scope) if getattr(node, "lineno", 0) > (found.root.end_lineno or 0)]
    return found.model in given and not any(isinstance(node, ast.Name) and node.id == found.model for node in after)


def _assign_results(tree: ast.Module, found: Sharding, uses: ModelUses, change: Rewriting) -> None:
    """Where that function is called, assign the module that it then returns; raises EditError where that is unclear."""
    scope = found.scope
    assert scope is not None
    by_hand = (
        f"`{scope.name}` does not return `{found.model}`, and DistributedDataParallel makes another module: return it, "
        "and assign it where the function is called"
    )
    position = [argument.arg for argument in scope.args.args].index(found.model) if scope.args.args else -1
    callers = [node for node in _names(tree) if ast.unparse(node).rpartition(".")[2] == scope.name]
    above = parents(tree)
    if not callers or position < 0 or scope.body[-1] is not found.root:
        raise EditError(by_hand)
    for caller in callers:
        call = above[caller]
        statement = above.get(call)
        if not isinstance(call, ast.Call) or not isinstance(statement, ast.Expr) or isinstance(caller, ast.Attribute):
            raise EditError(by_hand)
        words = [word.value for word in call.keywords if word.arg == found.model]
        model = call.args[position] if position < len(call.args) else next(iter(words), None)
        if not isinstance(model, (ast.Name, ast.Attribute)):
            raise EditError(by_hand)
        name = ast.unparse(model)
        uses.follow(name, statement, statement.end_lineno or statement.lineno)
        change.replace(statement, f"{name} = {ast.unparse(call)}\n")


def _check_device(trees: list[ast.Module], found: Sharding) -> None:
    """Raises EditError where only fully_shard moves the model to its device, or fills it."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    strings = [node for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    if any(node.attr in _ON_META for node in attributes) or any(node.value == "meta" for node in strings):
        raise EditError("the model is created on the meta device, which DistributedDataParallel does not support")
    on_gpu = any(node.attr == "cuda" for node in attributes) or any(
        str(node.value).startswith(("cuda", "nccl")) for node in strings
    )
    last = found.model.removeprefix("self.")
    moved = any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _MOVES
        and (
            ast.unparse(node.func.value).removeprefix("self.") == last
            or any(_makes(node.func.value, tree, last) for tree in trees)
        )
        for node in nodes
    )
    if on_gpu and not moved:
        raise EditError("only fully_shard moves the model to its GPU: call `.to(device)` on it first")


def _makes(value: ast.expr, tree: ast.Module, name: str) -> bool:
    """Whether `name = value.to(device)` is in the script, as it creates the model."""
    return isinstance(value, ast.Call) and any(
        isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]).removeprefix("self.") == name
        and any(each is value for each in ast.walk(node.value))
        for node in ast.walk(tree)
    )


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None

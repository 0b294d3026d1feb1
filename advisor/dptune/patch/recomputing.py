"""Activation checkpointing taken out of a script: blocks are called, and nothing is recomputed."""

from __future__ import annotations

import ast

from libcst.metadata import QualifiedNameSource

from dptune.patch.rewriting import Rewriting, parents
from dptune.patch.source import EditError, Source

_OPTIONS = ("context_fn", "debug", "determinism_check", "early_stop", "preserve_rng_state", "use_reentrant")
_FUNCTION, _WRAPPER, _APPLIES = "checkpoint", "checkpoint_wrapper", "apply_activation_checkpointing"
_SEQUENTIAL = "checkpoint_sequential"
_ENABLES, _ARGUMENT = "gradient_checkpointing_enable", "gradient_checkpointing"
_ATOMS = (ast.Attribute, ast.Call, ast.Name, ast.Subscript)


def remove_checkpoints(source: Source) -> None:
    """Call what the script checkpoints, at every place of the file; raises EditError where that is not understood."""
    tree, change, found = source.tree, Rewriting(source), 0
    for call, name in _torch_calls(source):
        if name == _FUNCTION:
            change.replace_call(call, _called(call))
        elif name == _WRAPPER:
            if not call.args or isinstance(call.args[0], ast.Starred):
                raise EditError(f"line {call.lineno} calls checkpoint_wrapper in a form that is not understood")
            change.replace_call(call, ast.unparse(call.args[0]))
        elif name == _APPLIES:
            _remove(tree, change, call)
        else:
            raise EditError(f"line {call.lineno} calls {name}: call its functions one after the other, by hand")
        found += 1
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == _ENABLES:
            _remove(tree, change, node)
            found += 1
        if isinstance(node, ast.keyword) and node.arg == _ARGUMENT:
            raise EditError(f"line {node.value.lineno} passes {_ARGUMENT}: set it to False there")
    if not found:
        raise EditError("the file calls no function of torch that checkpoints: another file does")
    change.make()


def _torch_calls(source: Source) -> list[tuple[ast.Call, str]]:
    """The calls of torch's functions that checkpoint, with their names there."""
    found = []
    for place in source.calls():
        call = source.in_tree(place)
        if call is None or not isinstance(call.func, (ast.Name, ast.Attribute)):
            continue
        names = source.scope(place).get_qualified_names_for(ast.unparse(call.func))
        paths = {meaning.name for meaning in names if meaning.source is QualifiedNameSource.IMPORT}
        if len(paths) != 1 or len(names) != 1:
            continue
        (path,) = paths
        last = path.rpartition(".")[2]
        of_torch = path.startswith("torch.") and "checkpoint" in path.rpartition(".")[0]
        if of_torch and last in (_FUNCTION, _WRAPPER, _APPLIES, _SEQUENTIAL):
            found.append((call, last))
    return found


def _called(call: ast.Call) -> str:
    """The call of what is checkpointed, without the checkpoint's options."""
    starred = call.args and isinstance(call.args[0], ast.Starred)
    if not call.args or starred or any(word.arg is None for word in call.keywords):
        raise EditError(f"line {call.lineno} calls checkpoint in a form that is not understood")
    function, *args = call.args
    words = [word for word in call.keywords if word.arg not in _OPTIONS]
    for inner in (*args, *(word.value for word in words), function):
        if any(isinstance(node, ast.Call) and "checkpoint" in ast.unparse(node.func) for node in ast.walk(inner)):
            raise EditError(f"line {call.lineno} checkpoints in a checkpoint: edit it by hand")
    name = ast.unparse(function) if isinstance(function, _ATOMS) else f"({ast.unparse(function)})"
    return f"{name}({', '.join(map(ast.unparse, (*args, *words)))})"


def _remove(tree: ast.Module, change: Rewriting, call: ast.Call) -> None:
    """Remove the statement that is the call."""
    above = parents(tree)
    statement = above[call]
    if not isinstance(statement, ast.Expr):
        raise EditError(f"line {call.lineno} uses what {ast.unparse(call.func)} returns: edit it by hand")
    holder = above[statement]
    bodies = [value for _, value in ast.iter_fields(holder) if isinstance(value, list) and statement in value]
    change.replace(statement, "" if len(bodies[0]) > 1 else "pass\n")

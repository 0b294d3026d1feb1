"""fully_shard in place of DistributedDataParallel, and activation checkpointing of blocks before either."""

from __future__ import annotations

import ast

from dptune.advice import Change
from dptune.patch.fsdp_calls import KNOB, sharding_of
from dptune.patch.imports import imported
from dptune.patch.larger_units import is_block, unused
from dptune.patch.rewriting import Rewriting, calls_in_tree, parents
from dptune.patch.source import AlreadyMadeError, EditError, Source

_SAME = (  # arguments of DistributedDataParallel that fully_shard needs no counterpart of
    *("broadcast_buffers", "bucket_cap_mb", "device_ids", "find_unused_parameters", "gradient_as_bucket_view"),
    *("output_device", "static_graph"),
)
_OF_WHOLE_TENSORS = (  # what means something else, or fails, with sharded parameters
    *("GradScaler", "ZeroRedundancyOptimizer", "clip_grad_value_", "grad", "join", "load_state_dict", "no_sync"),
    *("register_comm_hook", "require_backward_grad_sync", "state_dict"),
)
_PARAMETERS = ("named_parameters", "parameters")
_WRAPPERS = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"
_APPLIES = "apply_activation_checkpointing"


def shard(source: Source, change: Change) -> None:
    """Shard the blocks of the class `change.block`, then the model, in place of DistributedDataParallel.

    Raises EditError with a sentence where the script uses what sharded parameters do not have.
    """
    tree = source.tree
    call, statement, model = _replicated(source)
    for word in call.keywords:
        if word.arg not in _SAME:
            raise EditError(f"fully_shard has no counterpart of `{word.arg or '**'}`, which the script passes")
    if len(call.args) != 1:
        raise EditError(f"line {call.lineno} passes arguments of DistributedDataParallel by position")
    name = ast.unparse(statement.targets[0])
    above = parents(tree)
    rewriting = Rewriting(source)
    for node in ast.walk(tree):
        attribute = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if attribute in _OF_WHOLE_TENSORS:
            raise EditError(f"line {node.lineno} uses `{attribute}`, which is different for sharded parameters")  # type: ignore[attr-defined]
        if not isinstance(node, ast.Attribute):
            continue
        owner = ast.unparse(node.value)
        if attribute in _PARAMETERS and owner in (name, model) and node.lineno < statement.lineno:
            raise EditError(f"line {node.lineno} reads the parameters before they are sharded: move it below")
        if attribute == "module" and owner == name:
            rewriting.replace_attribute(node, name)
    for clip in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if ast.unparse(clip.func).endswith("clip_grad_norm_") and not isinstance(above[clip], ast.Expr):
            raise EditError(f"line {clip.lineno} uses the norm of gradients, which is sharded: edit it by hand")
    function = imported(source, rewriting, call, "torch.distributed.fsdp", "fully_shard", [statement])
    module = unused(tree, ("module", "submodule"))
    test = ast.unparse(is_block(tree, module, _block(change)))
    text = f"for {module} in {model}.modules():\n    if {test}:\n        {function}({module})\n{function}({model})\n"
    rewriting.replace(statement, text + (f"{name} = {model}\n" if name != model else ""))
    rewriting.make()


def add_checkpoints(source: Source, change: Change) -> None:
    """Checkpoint the blocks of the class `change.block` before the model is wrapped; raises EditError if unclear."""
    tree = source.tree
    if any(isinstance(node, ast.Name) and node.id == _APPLIES for node in ast.walk(tree)):
        raise AlreadyMadeError("the file already applies activation checkpointing")
    if calls_in_tree(source, KNOB):
        found = sharding_of(source)
        call, first, model = found.call, (found.units or [found.root])[0], found.model
    else:
        call, first, model = _replicated(source)
    rewriting = Rewriting(source)
    function = imported(source, rewriting, call, _WRAPPERS, _APPLIES)
    test = ast.unparse(is_block(tree, "module", _block(change)))
    rewriting.insert(first, f"{function}({model}, check_fn=lambda module: {test})\n")
    rewriting.make()


def _replicated(source: Source) -> tuple[ast.Call, ast.Assign, str]:
    """The call that wraps a model in DistributedDataParallel, its statement, and the model."""
    calls = calls_in_tree(source, "ddp.no_sync")
    if not calls:
        raise EditError("the file wraps no model in DistributedDataParallel or fully_shard")
    if len(calls) > 1:
        raise EditError(f"the file creates {len(calls)} DistributedDataParallel models: edit it by hand")
    (call,) = calls
    statement = parents(source.tree)[call]
    model = call.args[0] if call.args else None
    if (
        not isinstance(statement, ast.Assign)
        or len(statement.targets) != 1
        or not isinstance(statement.targets[0], (ast.Name, ast.Attribute))
        or not isinstance(model, (ast.Name, ast.Attribute))
    ):
        raise EditError(f"line {call.lineno} does not wrap a model of a name and assign it: edit it by hand")
    return call, statement, ast.unparse(model)


def _block(change: Change) -> str:
    if not change.block.isidentifier():
        raise EditError("the class of the model's blocks is unknown")
    return change.block

"""Arguments that all calls of fully_shard in a script get: a 2-D mesh, or a policy that keeps shards on the host."""

from __future__ import annotations

import ast

from dptune.advice import Change
from dptune.patch.fsdp_calls import KNOB, arguments_of, sharding_of
from dptune.patch.imports import imported
from dptune.patch.rewriting import Rewriting, calls_in_tree
from dptune.patch.source import AlreadyMadeError, EditError, Source

_MESHES = ("mesh", "mesh_2d")
_POLICY, _ARGUMENT = "CPUOffloadPolicy", "offload_policy"


def set_within_hosts(source: Source, change: Change) -> None:
    """Pass the mesh that `change.snippet` creates to all calls, and create it before the first of them."""
    tree = source.tree
    match ast.parse(change.snippet).body if change.then is True else []:
        case [ast.Assign(targets=[ast.Name()], value=ast.Call(func=ast.Name()))]:
            pass
        case _:
            raise EditError("the mesh of hosts and their ranks is unknown")
    found = sharding_of(source)
    calls = calls_in_tree(source, KNOB)
    rewriting = Rewriting(source)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    used |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    name = next((mesh for mesh in _MESHES if mesh not in used), None)
    if name is None:
        raise EditError(f"the file uses the names {' and '.join(_MESHES)}: create the mesh by hand")
    for call in calls:
        if "mesh" in arguments_of(tree, call) and not any(word.arg == "mesh" for word in call.keywords):
            raise EditError(f"line {call.lineno} passes `mesh` in a dictionary: set it there")
        rewriting.set_keyword(call, "mesh", name)
    function = imported(source, rewriting, found.call, "torch.distributed.device_mesh", "init_device_mesh")
    rewriting.insert((found.units or [found.root])[0], f"{name} = {function}({change.snippet.partition('(')[2]}\n")
    rewriting.make()


def set_offload(source: Source, change: Change) -> None:
    """Pass CPUOffloadPolicy to all calls, or take the policy out of them."""
    tree = source.tree
    calls = calls_in_tree(source, KNOB)
    if not calls:
        raise EditError("the file does not call fully_shard")
    rewriting = Rewriting(source)
    now = [arguments_of(tree, call).get(_ARGUMENT) for call in calls]
    if all((policy is not None) == change.then for policy in now):
        raise AlreadyMadeError("the script already sets this value")
    if change.then:
        _check_backend(tree)
        policy_class = imported(source, rewriting, calls[0], "torch.distributed.fsdp", _POLICY)
    for call, policy in zip(calls, now, strict=True):
        direct = any(word.arg == _ARGUMENT for word in call.keywords)
        if policy is not None and (change.then or not direct):
            raise EditError(f"line {call.lineno} passes another `{_ARGUMENT}`, or in a dictionary: edit it by hand")
        if change.then:
            rewriting.set_keyword(call, _ARGUMENT, f"{policy_class}()")
        elif direct:
            rewriting.set_keyword(call, _ARGUMENT, None)
    rewriting.make()


def _check_backend(tree: ast.Module) -> None:
    """Raises EditError where the norm of gradients on the host needs a backend that the script does not create."""
    clips = any(isinstance(node, ast.Attribute) and node.attr == "clip_grad_norm_" for node in ast.walk(tree)) or any(
        isinstance(node, ast.Name) and node.id == "clip_grad_norm_" for node in ast.walk(tree)
    )
    if clips and any(isinstance(node, ast.Constant) and node.value == "nccl" for node in ast.walk(tree)):
        raise EditError(
            "clip_grad_norm_ sums gradients on the host with CPUOffloadPolicy: initialize the process group with "
            '"cpu:gloo,cuda:nccl" first'
        )

"""Set a dtype of the mixed-precision policy in a call of `fully_shard`; unsafe edits are refused."""

from __future__ import annotations

import ast

import libcst as cst

from dptune.advice import Change
from dptune.knobs.fsdp import DTYPES
from dptune.patch.argument import added_argument
from dptune.patch.call import call_on
from dptune.patch.source import AlreadyMadeError, EditError, Source, Undo

DTYPE_OF = {"fsdp.param_dtype": "param_dtype", "fsdp.reduce_dtype": "reduce_dtype"}  # the policy's argument, by knob
_ARGUMENT, _POLICY = "mp_policy", "MixedPrecisionPolicy"
_MODULE = "torch.distributed.fsdp"  # imported by whatever imports fully_shard


def set_dtype(source: Source, line: int, change: Change) -> None:
    """Set a dtype in the policy of the `fully_shard` call that starts on `line`, or pass a policy where it has none.

    Raises EditError with a sentence where the policy is made elsewhere, or the edit is unsafe.
    """
    name = DTYPE_OF[change.knob]
    dtype = None if change.then is None else DTYPES[str(change.then)]
    call = call_on(source, line, change.knob)
    there = source.edited(call)
    in_tree = source.in_tree(call)
    unsafe = f"the call on line {line} cannot be edited safely: set it by hand"
    if in_tree is None or any(given.star == "**" for given in there.args):
        raise EditError(unsafe)
    value = "None" if dtype is None else f"{_read_as(source, call, 'torch')}.{dtype}"
    given = next((at for at, arg in enumerate(there.args) if arg.keyword and arg.keyword.value == _ARGUMENT), None)
    if given is None:
        policy = f"{_read_as(source, call, _POLICY)}({name}={value})"
        source.edit(
            {call: lambda now: added_argument(now, _ARGUMENT, cst.parse_expression(policy))},
            lambda: _append(in_tree, ast.keyword(_ARGUMENT, _parsed(policy))),
            unsafe,
        )
        return
    made = there.args[given].value
    of_policy = next((word.value for word in in_tree.keywords if word.arg == _ARGUMENT), None)
    if not isinstance(made, cst.Call) or not isinstance(of_policy, ast.Call) or not _is_policy(made):
        raise EditError(f"{_ARGUMENT} is made elsewhere: set {name} there")
    if any(word.arg == name and ast.dump(word.value) == ast.dump(_parsed(value)) for word in of_policy.keywords):
        raise AlreadyMadeError("the script already sets this value")

    def edit(now: cst.Call) -> cst.Call:
        policy = now.args[given].value
        assert isinstance(policy, cst.Call)
        args = [*now.args]
        args[given] = args[given].with_changes(value=_with_dtype(policy, name, value))
        return now.with_changes(args=args)

    source.edit({call: edit}, lambda: _replace(of_policy, ast.keyword(name, _parsed(value))), unsafe)


def _with_dtype(policy: cst.Call, name: str, value: str) -> cst.Call:
    at = next((at for at, arg in enumerate(policy.args) if arg.keyword and arg.keyword.value == name), None)
    if at is None:
        return added_argument(policy, name, cst.parse_expression(value))
    args = [*policy.args]
    args[at] = args[at].with_changes(value=cst.parse_expression(value))
    return policy.with_changes(args=args)


def _is_policy(call: cst.Call) -> bool:
    """Whether it makes the policy, with all arguments by name."""
    name = call.func.attr if isinstance(call.func, cst.Attribute) else call.func
    by_name = all(arg.keyword is not None for arg in call.args)
    return isinstance(name, cst.Name) and name.value == _POLICY and by_name


def _read_as(source: Source, call: cst.Call, name: str) -> str:
    """How the script reads torch, or the policy's class: by its own import of it, else from torch's package."""
    found = {meaning.name for meaning in source.scope(call).get_qualified_names_for(name)}
    if found and all(path.split(".")[0] == "torch" and path.split(".")[-1] == name for path in found):
        return name
    if name == "torch" or found:
        raise EditError(f"`{name}` is not torch's in this file: set it by hand")
    return f"{_read_as(source, call, 'torch')}.{_MODULE.removeprefix('torch.')}.{name}"


def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _append(call: ast.Call, word: ast.keyword) -> Undo:
    call.keywords.append(word)
    return lambda: call.keywords.remove(word)


def _replace(call: ast.Call, word: ast.keyword) -> Undo:
    before = call.keywords
    is_there = any(other.arg == word.arg for other in before)
    call.keywords = [word if other.arg == word.arg else other for other in before] + ([] if is_there else [word])

    def undo() -> None:
        call.keywords = before

    return undo

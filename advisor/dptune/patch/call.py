"""The call on a line that creates the object of a knob, and the knob's argument in it."""

from __future__ import annotations

import libcst as cst
from libcst.helpers import get_full_name_for_node
from libcst.metadata import QualifiedNameSource

from dptune.knobs import knob
from dptune.patch.source import EditError, Source

_SHORT = {"DDP": "DistributedDataParallel"}  # for names that the file does not import


def call_on(source: Source, line: int, name: str) -> cst.Call:
    """The call at `line` that creates the object of knob `name`; raises EditError unless there is exactly one."""
    classes = _classes(name)
    calls = [call for call in calls_of(source, name) if line in (source.begin(call)[0], source.end(call.func)[0])]
    words = " or ".join([*filter(None, [", ".join(classes[:-1])]), classes[-1]])
    if not calls:
        raise EditError(f"line {line} has no call to torch's {words}: the object may be created elsewhere")
    if len(calls) > 1:
        raise EditError(f"line {line} has {len(calls)} calls to {words}, and it is unclear which one is meant")
    return calls[0]


def calls_of(source: Source, name: str) -> list[cst.Call]:
    """All calls that create the object of knob `name`, by torch's names."""
    classes = _classes(name)
    return [call for call in source.calls() if _makes_one(source, call, classes)]


def argument_in(call: cst.Call, name: str) -> cst.Arg | None:
    """The argument, None if the call does not pass it; raises EditError if that is unclear."""
    argument, positions = knob(name).argument, knob(name).positions
    for given in call.args:
        if given.keyword is not None and given.keyword.value == argument:
            return given
    if any(given.star == "**" for given in call.args):
        raise EditError("the call takes its arguments from a dictionary: set it there")
    by_position = positional(call)
    if any(given.star for given in by_position[: max(positions, default=-1) + 1]):
        raise EditError(f"the call takes its arguments from a sequence, and {argument} may be among them: set it there")
    if not positions or len(by_position) <= min(positions):
        return None
    if len(positions) > 1:
        raise EditError(f"{argument} may be among the positional arguments of the call: pass them by keyword")
    return by_position[positions[0]]


def positional(call: cst.Call) -> list[cst.Arg]:
    """The positional arguments."""
    return [given for given in call.args if given.keyword is None and given.star != "**"]


def _classes(name: str) -> tuple[str, ...]:
    """The names of torch's classes whose objects have the knob."""
    setting = knob(name)
    return setting.classes or (setting.call.classes if setting.call is not None else ())


def _makes_one(source: Source, call: cst.Call, classes: tuple[str, ...]) -> bool:
    """Whether it calls one of these classes of torch; another class of the same name may take other arguments."""
    paths = [path.split(".") for path in _paths(source, call)]
    return bool(paths) and all(path[0] == "torch" and path[-1] in classes for path in paths)


def _paths(source: Source, call: cst.Call) -> set[str]:
    """The possible meanings of the called name, by the imports visible in its scope."""
    root: cst.BaseExpression = call.func
    while isinstance(root, cst.Attribute):
        root = root.value
    name = get_full_name_for_node(call.func)
    if not isinstance(root, cst.Name) or name is None:
        return set()
    meanings = source.scope(call).get_qualified_names_for(name)  # by name: of the node it leaves out what comes below
    imported = {meaning.name for meaning in meanings if meaning.source is QualifiedNameSource.IMPORT}
    if imported and (
        call.func is not root or len(imported) == len(meanings)
    ):  # `data.DataLoader`, and a loop over data
        return imported
    if call.func is not root:
        return {name}
    return set() if meanings else {f"torch.{_SHORT.get(name, name)}"}  # import * may have brought it

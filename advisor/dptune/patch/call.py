"""The call on a line that creates the object of a knob, and the knob's argument in it."""

from __future__ import annotations

import libcst as cst
from libcst.helpers import get_full_name_for_node
from libcst.metadata import QualifiedNameSource

from dptune.knobs import knob
from dptune.patch.source import EditError, Source

_WITH_FOREACH = (
    *("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop"),
    *("Rprop", "SGD"),
)
_WITH_BETAS = ("Adam", "AdamW", "Adamax", "NAdam", "RAdam", "SparseAdam")
_MAKES = {
    "ddp": ("DistributedDataParallel",),
    "loader": ("DataLoader",),
    "optimizer.lr": (*_WITH_FOREACH, "LBFGS", "Muon", "SparseAdam"),
    "optimizer.betas": _WITH_BETAS,
    "optimizer.eps": _WITH_BETAS,
    "optimizer.fused": ("Adagrad", "Adam", "AdamW", "SGD"),
    "optimizer.foreach": _WITH_FOREACH,
}
_SHORT = {"DDP": "DistributedDataParallel"}  # for names that the file does not import

# Possible positions of the argument, from 0: several if they differ between versions of torch or between classes. All
# other arguments are keyword-only.
POSITIONS = {
    "loader.batch_size": (1,),
    "loader.num_workers": (5,),
    "loader.pin_memory": (7,),
    "ddp.broadcast_buffers": (4,),
    "ddp.bucket_cap_mb": (6, 7),
    "ddp.find_unused_parameters": (7, 8),
    "ddp.gradient_as_bucket_view": (9, 10),
    "ddp.static_graph": (10, 11),
    "ddp.bucket_cap_mb_list": (16, 17),
    "optimizer.lr": (1,),
    "optimizer.betas": (2,),
    "optimizer.eps": (3,),
    "optimizer.foreach": (5, 6, 8),
}


def call_on(source: Source, line: int, name: str) -> cst.Call:
    """The call at `line` that creates the object of knob `name`; raises EditError unless there is exactly one."""
    classes = makes(name)
    calls = [call for call in calls_of(source, name) if line in (source.begin(call)[0], source.end(call.func)[0])]
    words = " or ".join([*filter(None, [", ".join(classes[:-1])]), classes[-1]])
    if not calls:
        raise EditError(f"line {line} has no call to torch's {words}: the object may be created in another way")
    if len(calls) > 1:
        raise EditError(f"line {line} has {len(calls)} calls to {words}, and it is unclear which one is meant")
    return calls[0]


def calls_of(source: Source, name: str) -> list[cst.Call]:
    """All calls that create the object of knob `name`, by torch's names."""
    classes = makes(name)
    return [call for call in source.calls() if _makes_one(source, call, classes)]


def argument_in(call: cst.Call, name: str) -> cst.Arg | None:
    """The argument, None if the call does not pass it; raises EditError if that is unclear."""
    argument = knob(name).argument
    for given in call.args:
        if given.keyword is not None and given.keyword.value == argument:
            return given
    if any(given.star == "**" for given in call.args):
        raise EditError("the call takes its arguments from a dictionary: set it there")
    positions = POSITIONS.get(name, ())
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


def makes(name: str) -> tuple[str, ...]:
    """The names of torch's classes that accept the knob's argument."""
    return _MAKES.get(name) or _MAKES[name.partition(".")[0]]


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

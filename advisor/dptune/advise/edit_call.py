"""Which call on a line makes what a knob belongs to, and where in it the knob's argument stands."""

from __future__ import annotations

import ast
from collections import defaultdict

from dptune.knobs import knob

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
_SHORT = {"DDP": "DistributedDataParallel"}  # where the file does not say what it is

# At which positions the argument can stand, the first at 0: several, where they differ between versions of torch or
# between classes. The others are taken by name only.
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


class EditError(Exception):
    """Why a program cannot be edited as asked: one sentence."""


def call_on(tree: ast.Module, line: int, name: str) -> ast.Call:
    """The one call recorded at `line` that makes what knob `name` belongs to; raises EditError without just one."""
    classes = makes(name)
    calls = [call for call in calls_of(tree, name) if is_on(call, line)]
    words = " or ".join([*filter(None, [", ".join(classes[:-1])]), classes[-1]])
    if not calls:
        raise EditError(f"line {line} holds no call of torch's {words} by that name: it may be made in another way")
    if len(calls) > 1:
        raise EditError(f"line {line} holds {len(calls)} calls of {words}, and which one is meant is not known")
    return calls[0]


def calls_of(tree: ast.Module, name: str) -> list[ast.Call]:
    """All calls that make what knob `name` belongs to, by torch's names."""
    classes, names = makes(name), _Names(tree)
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call) and names.mean(node.func, classes)]


def is_on(call: ast.Call, line: int) -> bool:
    """Whether Python's line of a call is that: the one it begins on, or the one of the method's name."""
    return line in (call.lineno, call.func.end_lineno)


def argument_in(call: ast.Call, name: str) -> ast.keyword | int | None:
    """The argument's keyword, its position, or None where the call does not give it; raises EditError if unsure."""
    argument = knob(name).argument
    for word in call.keywords:
        if word.arg == argument:
            return word
    if any(word.arg is None for word in call.keywords):
        raise EditError("the call takes its arguments from a dictionary: set it there")
    positions = POSITIONS.get(name, ())
    if any(isinstance(one, ast.Starred) for one in call.args[: max(positions, default=-1) + 1]):
        raise EditError(f"the call takes its arguments from a sequence, and {argument} may be among them: set it there")
    if not positions or len(call.args) <= min(positions):
        return None
    if len(positions) > 1:
        raise EditError(f"{argument} may be among the arguments that the call gives without names: give them names")
    return positions[0]


def makes(name: str) -> tuple[str, ...]:
    """The names of torch's classes that take the knob's argument."""
    return _MAKES.get(name) or _MAKES[name.partition(".")[0]]


class _Names:
    """What the names in a program may mean, by its imports. Scopes are not told apart: one doubt is enough."""

    def __init__(self, tree: ast.Module) -> None:
        self._imported: dict[str, set[str]] = defaultdict(set)
        self._otherwise: set[str] = set()
        for node in ast.walk(tree):
            match node:
                case ast.Import(names=names):
                    for one in names:
                        root = one.name.partition(".")[0]
                        self._imported[one.asname or root].add(one.name if one.asname else root)
                case ast.ImportFrom(module=module, names=names, level=level):
                    for one in names:
                        self._imported[one.asname or one.name].add(f"{'.' * level}{module or ''}.{one.name}")
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    self._otherwise.add(name)
                case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                    self._otherwise.add(name)

    def mean(self, function: ast.expr, classes: tuple[str, ...]) -> bool:
        """Whether it is one of these classes of torch. A class of the same name may take other arguments."""
        paths = [path.split(".") for path in self._paths(function)]
        return bool(paths) and all(path[0] == "torch" and path[-1] in classes for path in paths)

    def _paths(self, function: ast.expr) -> set[str]:
        rest = ""
        while isinstance(function, ast.Attribute):
            rest = f".{function.attr}{rest}"
            function = function.value
        if not isinstance(function, ast.Name):
            return set()
        name = function.id
        if name in self._imported and (rest or name not in self._otherwise):  # `data.DataLoader`, and a loop over data
            return {f"{path}{rest}" for path in self._imported[name]}
        if rest:
            return {f"{name}{rest}"}
        return set() if name in self._otherwise else {f"torch.{_SHORT.get(name, name)}"}  # import * may have brought it

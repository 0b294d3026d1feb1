"""What a script does with its model after it is wrapped, and whether DistributedDataParallel can do the same."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from libcst.metadata import QualifiedNameSource

from dptune.patch.rewriting import parents
from dptune.patch.source import EditError, Source

AS_BEFORE = ("buffers", "eval", "parameters", "requires_grad_", "train", "training", "zero_grad")
INNER = (  # of the module inside: their names or results are of the model itself
    *("apply", "children", "config", "load_state_dict", "modules", "named_buffers", "named_children"),
    *("named_modules", "named_parameters", "state_dict"),
)
OF_SHARDS = (  # names that only sharded models have a use for, besides `full_tensor`, which a patch removes
    *("DTensor", "FSDPModule", "_local_tensor", "device_mesh", "distribute_tensor", "placements", "redistribute"),
    *("register_fsdp_forward_method", "reshard", "set_is_last_backward", "set_modules_to_backward_prefetch"),
    *("set_modules_to_forward_prefetch", "set_requires_all_reduce", "set_requires_gradient_sync"),
    *("set_reshard_after_backward", "set_reshard_after_forward", "set_unshard_in_backward", "to_local", "unshard"),
)
_HARMLESS = ("id", "isinstance", "len", "print", "repr", "str", "type")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEEPEST = 6  # functions that hand the model on


class ModelUses:
    """Follows a model through a script. `inner`: the attributes to take from `.module` once it is wrapped."""

    def __init__(self, source: Source) -> None:
        self._source, self._tree = source, source.tree
        self._above = parents(source.tree)
        self._seen: set[tuple[int, str]] = set()
        self.inner: list[ast.Attribute] = []

    def follow(self, name: str, at: ast.AST, after: int) -> None:
        """Check all uses of `name`, as it is called at a node, below line `after`.

        Raises EditError, naming the line, for a use that DistributedDataParallel may not have.
        """
        scope = self._holder(at, ast.ClassDef if name.startswith("self.") else _FUNCTIONS)
        self._follow(name, scope, after, _DEEPEST, True)

    def returned(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Check the uses of what a function returns, where the file calls it."""
        self._returned(function, _DEEPEST)

    def _follow(self, name: str, scope: ast.AST, after: int, deep: int, mends: bool) -> None:
        if (id(scope), name) in self._seen:
            return
        self._seen.add((id(scope), name))
        if not deep:
            raise EditError(f"`{name}` is handed on through too many functions to follow it")
        own = self._holder_of_line(scope, after)
        for node in _expressions(scope, name):
            function = self._holder(node, _FUNCTIONS)
            if function is not scope and function is not own and _binds(function, name):
                continue
            if node.lineno > after or (function is not own and function is not scope):
                self._use(node, name, deep, mends)
            elif mends:
                self._before(node, name, after)
        for node in _others(self._tree, name):
            self._use(node, ast.unparse(node), deep, False)

    def _before(self, node: ast.expr, name: str, after: int) -> None:
        """Raises EditError where the script keeps the model that is not wrapped yet."""
        parent = self._above[node]
        if isinstance(parent, ast.keyword):
            parent = self._above[parent]
        if (node.end_lineno or 0) >= after or isinstance(parent, (ast.Attribute, ast.For)):
            return
        if isinstance(parent, ast.Call):
            statement = self._above[parent]
            if (
                parent.func is node
                or isinstance(statement, ast.Expr)
                or (isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == name)
                or ast.unparse(parent.func) in (*_HARMLESS, "copy.deepcopy", "deepcopy", "fully_shard")
            ):
                return
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            return
        raise EditError(
            f"line {node.lineno} keeps `{name}` before it is wrapped, so its gradients would not be synchronized there"
        )

    def _use(self, node: ast.expr, name: str, deep: int, mends: bool) -> None:
        parent = self._above[node]
        where = f"line {node.lineno}"
        match parent:
            case ast.Attribute(attr=attr):
                if attr in AS_BEFORE:
                    return None
                if attr in INNER and mends:
                    self.inner.append(parent)
                    return None
                raise EditError(f"{where} uses `{name}.{attr}`, which a model in DistributedDataParallel may not have")
            case ast.Call(func=func) if func is node:
                return None
            case ast.Call():
                self._given(parent, node, parent.args.index(node), deep)
                return None
            case ast.keyword(arg=str() as word):
                call = self._above[parent]
                assert isinstance(call, ast.Call)
                self._given(call, node, word, deep)
                return None
            case ast.Assign(targets=[target], value=value) if value is node:
                return self._alias(target, parent, deep)
            case ast.Assign(value=ast.Call() as made) if any(each is node for each in parent.targets):
                if any(ast.unparse(each) == name for each in made.args):
                    return None  # `model = torch.compile(model)`: what it gives is checked as a use of its own
                raise EditError(f"{where} assigns `{name}` again")
            case ast.Return() if isinstance(function := self._holder(node, _FUNCTIONS), _FUNCTIONS):
                self._returned(function, deep)
                return None
            case ast.Expr():
                return None
        raise EditError(f"{where} uses `{name}` in a way that cannot be followed")

    def _alias(self, target: ast.expr, statement: ast.Assign, deep: int) -> None:
        alias = ast.unparse(target)
        if not isinstance(target, (ast.Name, ast.Attribute)) or (
            isinstance(target, ast.Attribute) and not alias.startswith("self.")
        ):
            raise EditError(f"line {statement.lineno} keeps the model where it cannot be followed")
        scope = self._holder(statement, ast.ClassDef if isinstance(target, ast.Attribute) else _FUNCTIONS)
        self._follow(alias, scope, statement.lineno, deep - 1, True)

    def _given(self, call: ast.Call, node: ast.expr, place: int | str, deep: int) -> None:
        """Of a function or class that the model is passed to: its uses, where the file has it."""
        name = ast.unparse(call.func)
        meanings = self._meanings(call)
        if name in _HARMLESS or (meanings and all(path.split(".")[0] == "torch" for path in meanings)):
            return
        functions = [found for found in self._named(name) if found is not None]
        if len(functions) != 1:
            raise EditError(f"line {node.lineno} passes the model to `{name}`, which is not in this file")
        (function,) = functions
        given = [*function.args.posonlyargs, *function.args.args]
        if isinstance(self._above[function], ast.ClassDef):
            given = given[1:]
        words = [argument.arg for argument in (*given, *function.args.kwonlyargs)]
        if isinstance(place, int):
            place = given[place].arg if place < len(given) else ""
        if place not in words:
            raise EditError(f"line {node.lineno} passes the model to `{name}` in a way that cannot be followed")
        self._follow(place, function, 0, deep - 1, False)

    def _named(self, name: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef | None]:
        """The functions of a name in the file; of a class its `__init__`."""
        last = name.rpartition(".")[2]
        found: list[ast.FunctionDef | ast.AsyncFunctionDef | None] = []
        for node in ast.walk(self._tree):
            if isinstance(node, _FUNCTIONS) and node.name == last:
                found.append(node)
            if isinstance(node, ast.ClassDef) and node.name == last:
                found.append(next((f for f in node.body if isinstance(f, _FUNCTIONS) and f.name == "__init__"), None))
        return found

    def _returned(self, function: ast.FunctionDef | ast.AsyncFunctionDef, deep: int) -> None:
        calls = [node for node in ast.walk(self._tree) if isinstance(node, (ast.Name, ast.Attribute))]
        uses = [node for node in calls if ast.unparse(node).removeprefix("self.") == function.name]
        for use in uses:
            call = self._above[use]
            statement = self._above.get(call)
            match statement:
                case ast.Assign(targets=[target], value=value) if value is call and isinstance(call, ast.Call):
                    self._alias(target, statement, deep)
                case _:
                    raise EditError(
                        f"line {use.lineno} does not assign what `{function.name}` returns, which is another module "
                        "with DistributedDataParallel"
                    )
        if not uses:
            raise EditError(f"`{function.name}` is not called in this file: its callers need the module it returns")

    def _meanings(self, call: ast.Call) -> set[str]:
        found = [node for node in self._source.calls() if self._source.in_tree(node) is call]
        if not found:
            return set()
        names = self._source.scope(found[0]).get_qualified_names_for(ast.unparse(call.func))
        return {meaning.name for meaning in names if meaning.source is QualifiedNameSource.IMPORT}

    def _holder(self, node: ast.AST, kinds: type | tuple[type, ...]) -> ast.AST:
        """The innermost function or class around it, else the module."""
        while (parent := self._above.get(node)) is not None and not isinstance(parent, kinds):
            node = parent
        return parent if parent is not None else self._tree

    def _holder_of_line(self, scope: ast.AST, line: int) -> ast.AST:
        """The function in which the name is given its value."""
        found = scope
        for node in ast.walk(scope):
            if isinstance(node, _FUNCTIONS) and node.lineno <= line <= (node.end_lineno or 0):
                found = node
        return found


def refuse_shards(tree: ast.AST) -> None:
    """Raises EditError where the script uses what only sharded models have."""
    for node in ast.walk(tree):
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if name in OF_SHARDS:
            raise EditError(f"line {node.lineno} uses `{name}`, which needs a sharded model: edit it by hand")  # type: ignore[attr-defined]


def _expressions(scope: ast.AST, name: str) -> Iterator[ast.expr]:
    for node in ast.walk(scope):
        if isinstance(node, (ast.Name, ast.Attribute)) and ast.unparse(node) == name:
            yield node


def _others(tree: ast.AST, name: str) -> Iterator[ast.expr]:
    """Attributes of that name of other objects, which may be the model: `trainer.model` for `self.model`."""
    last = name.removeprefix("self.")
    for node in ast.walk(tree) if last != name else ():
        if isinstance(node, ast.Attribute) and node.attr == last and ast.unparse(node) != name:
            yield node


def _binds(function: ast.AST, name: str) -> bool:
    """Whether the name is another thing in that function."""
    if not isinstance(function, _FUNCTIONS) or "." in name:
        return False
    if any(argument.arg == name for argument in ast.walk(function.args) if isinstance(argument, ast.arg)):
        return True
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
        for node in ast.walk(function)
    )

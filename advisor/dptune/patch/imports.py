"""Names that a change needs: as the script imports them, or by an import that is added."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from libcst.metadata import QualifiedNameSource

from dptune.patch.rewriting import Rewriting
from dptune.patch.source import EditError, Source


def imported(
    source: Source, change: Rewriting, call: ast.Call, module: str, name: str, gone: Sequence[ast.stmt] = ()
) -> str:
    """How the script names `module.name` of torch at a call of another function of torch.

    Where it does not import it, an import is added after that of the called function, or in its place, if only the
    statements in `gone`, which `change` replaces, use that. Raises EditError where the name stands for something else.
    """
    tree = source.tree
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            for alias in node.names:
                if alias.name == name:
                    return alias.asname or alias.name
    if any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(tree)) or _defines(tree, name):
        raise EditError(f"`{name}` is not torch's in this file: edit it by hand")
    if isinstance(call.func, ast.Attribute):
        if not _is_torch(source, call):
            raise EditError(f"the file does not import torch by its name, and `{name}` is needed: edit it by hand")
        return f"torch.{module.removeprefix('torch.')}.{name}"
    function = ast.unparse(call.func)
    statement = next(
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and any((alias.asname or alias.name) == function for alias in node.names)
    )
    text = f"from {module} import {name}\n"
    kept = {id(node) for removed in gone for node in ast.walk(removed)}
    used = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == function]
    if not gone or any(id(node) not in kept for node in used):
        if statement.module == module:
            names = [alias.name + (f" as {alias.asname}" if alias.asname else "") for alias in statement.names]
            change.replace(statement, f"from {module} import {', '.join(sorted([*names, name]))}\n")
        else:
            change.insert(statement, text, after=True)
        return name
    rest = [alias for alias in statement.names if (alias.asname or alias.name) != function]
    if rest:
        text += ast.unparse(ast.ImportFrom(statement.module, rest, statement.level)) + "\n"
    change.replace(statement, text)
    return name


def _defines(tree: ast.AST, name: str) -> bool:
    kinds = (ast.ClassDef, ast.FunctionDef)
    imports = [
        alias for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom)) for alias in node.names
    ]
    return any(isinstance(node, kinds) and node.name == name for node in ast.walk(tree)) or any(
        (alias.asname or alias.name) == name for alias in imports
    )


def _is_torch(source: Source, call: ast.Call) -> bool:
    found = next((node for node in source.calls() if source.in_tree(node) is call), None)
    if found is None:
        return False
    names = source.scope(found).get_qualified_names_for("torch")
    return any(meaning.name == "torch" and meaning.source is QualifiedNameSource.IMPORT for meaning in names)

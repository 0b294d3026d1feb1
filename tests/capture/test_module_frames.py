"""What replaces `nn.Module.__call__` while a script runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import dptune.capture.injected

SOURCES = sorted(Path(dptune.capture.injected.__file__ or "").parent.rglob("*.py"))


def replacements(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    """The functions that methods define and assign to `nn.Module.__call__`."""
    for method in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        assigned = {
            node.value.id
            for node in method.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name)
            for target in node.targets
            if ast.unparse(target) == "nn.Module.__call__"
        }
        yield from (node for node in method.body if isinstance(node, ast.FunctionDef) and node.name in assigned)


FOUND = [(path, function) for path in SOURCES for function in replacements(ast.parse(path.read_text()))]


def test_replacements_are_found() -> None:
    assert [path.name for path, _ in FOUND] == [
        *("compiling.py", "evaluation_graphs.py", "module_calls.py", "repeated_forward.py")
    ]


@pytest.mark.parametrize(("path", "function"), FOUND, ids=lambda value: getattr(value, "stem", None))
def test_a_replacement_calls_the_module_self(path: Path, function: ast.FunctionDef) -> None:
    """torch's profiler reads `self` of such a frame and takes it for the module: another object ends the script."""
    assert function.args.args[0].arg == "self", path

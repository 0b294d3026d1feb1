"""The path of a module in the model, by its names in its parent modules."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

from torch import nn

DEEPEST = 100
_WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module")

Parents = dict[int, tuple[Any, str]]


def all_modules() -> list[Any]:
    """All modules of the process, from one pass over its objects."""
    return [thing for thing in gc.get_objects() if issubclass(type(thing), nn.Module)]


def parents(modules: Sequence[Any] | None = None) -> Parents:
    """For each of the modules, or of all of the process, its parent and its name there."""
    return {
        id(child): (module, name)
        for module in (all_modules() if modules is None else modules)
        for name, child in (module.__dict__.get("_modules") or {}).items()
        if child is not None
    }


def joined(names: Sequence[str]) -> str:
    """The path from names, innermost first, without the names that wrappers add."""
    return ".".join(name for name in reversed(names) if name not in _WRAPPERS)


def path_of(module: Any, known: Parents) -> str:
    """Its path in the model; the class name of a module without a parent."""
    names: list[str] = []
    at = module
    while id(at) in known and len(names) < DEEPEST:
        at, name = known[id(at)]
        names.append(name)
    return joined(names) or type(module).__name__

"""Waits for a module that a script may or may not import, so that dptune never imports it for the script."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


class Imports(importlib.abc.MetaPathFinder):
    """Calls what was registered for a module right after that module has run; at once where it is there already."""

    def __init__(self) -> None:
        self._awaited: dict[str, list[Callable[[ModuleType], None]]] = {}

    def after(self, name: str, act: Callable[[ModuleType], None]) -> None:
        """Call `act` with the module, in the order of these calls. What goes wrong in it does not reach the script."""
        if name in sys.modules:
            _quietly(act, sys.modules[name])
            return
        self._awaited.setdefault(name, []).append(act)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Answer for what is awaited, with what the other finders say."""
        if name not in self._awaited:
            return None
        acts = self._awaited.pop(name)
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                break
        else:
            return None
        if spec.loader is not None and hasattr(spec.loader, "exec_module"):
            run: Any = spec.loader.exec_module

            def run_then_act(module: ModuleType) -> None:
                run(module)
                for act in acts:
                    _quietly(act, module)

            spec.loader.exec_module = run_then_act  # type: ignore[method-assign]
        return spec


def _quietly(act: Callable[[ModuleType], None], module: ModuleType) -> None:
    with contextlib.suppress(Exception):
        act(module)


imports = Imports()

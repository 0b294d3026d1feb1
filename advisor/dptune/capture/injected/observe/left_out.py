"""Whether parameters without an optimizer were left out by mistake, and the lines that made them and the optimizer.

torch calls a hook for each parameter that a module is given. Only those after the first optimizer are noted.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.optim import Optimizer

from dptune.capture.injected.observe.assignments import assigned_at
from dptune.capture.injected.observe.module_paths import DEEPEST, Parents, all_modules, parents, path_of
from dptune.capture.injected.observe.places import Places, users_function
from dptune.runfile.left_out import LeftOutFacts

_MOST = 10_000  # parameters that are noted
_NAMED = 3


class AddedParameters:
    """Parameters that modules were given after an optimizer was made, with the script's line."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._lines: dict[int, tuple[weakref.ref[Any], str | None]] = {}

    def install(self) -> None:
        """Let torch report parameters as modules get them."""
        register_module_parameter_registration_hook(self._registered)

    def __contains__(self, parameter: Any) -> bool:
        """Whether a module was given this parameter after an optimizer was made."""
        ref = self._lines.get(id(parameter), (None, None))[0]
        return ref is not None and ref() is parameter

    def line(self, parameter: Any) -> str | None:
        """Where the script did, as `function (file:line)`."""
        return self._lines[id(parameter)][1] if parameter in self else None

    def _registered(self, module: Any, name: str, parameter: Any) -> None:
        with contextlib.suppress(Exception):
            if parameter is not None and len(self._lines) < _MOST and self._places.alive(Optimizer):
                self._lines[id(parameter)] = (weakref.ref(parameter), users_function(sys._getframe(1)))


def left_out(
    orphans: Sequence[Any], others: Sequence[Any], order: Mapping[int, int], added: AddedParameters, places: Places
) -> LeftOutFacts | None:
    """What is known of parameters without an optimizer; None where the script seems to use them fixed, on purpose.

    That is the body of a model with a new head, which is most of its tensors and runs before all that is trained, and
    a network of its own in evaluation mode. `order`: when each parameter was first used in the forward pass.
    """
    later = [parameter for parameter in orphans if parameter in added]
    modules = all_modules()
    known = parents(modules)
    holders = {
        id(parameter): module
        for module in modules
        for parameter in module._parameters.values()
        if parameter is not None
    }
    holding = [holders[id(parameter)] for parameter in orphans if id(parameter) in holders]
    roots = {id(_root(holders[id(parameter)], known)) for parameter in others if id(parameter) in holders}
    if holding and all(not module.training and id(_root(module, known)) not in roots for module in holding):
        return None
    last_left_out = max(order.get(id(parameter), 0) for parameter in orphans)
    first_held = min(order.get(id(parameter), 0) for parameter in others)
    if not later and last_left_out < first_held and len(orphans) > len(others):
        return None
    held = {id(parameter) for parameter in others}
    listed_in, listed_where = _listed(holding, modules, known)
    optimizer = max(places.alive(Optimizer), key=lambda candidate: _holds(candidate, held))
    return LeftOutFacts(
        optimizer=type(optimizer).__name__,
        optimizer_where=places.line(optimizer),
        tensors=len(orphans),
        of_tensors=len(orphans) + len(others),
        parameters=sum(parameter.numel() for parameter in orphans),
        modules=_named([path_of(module, known) for module in holding]),
        added_later=bool(later),
        added_where=next((line for parameter in later if (line := added.line(parameter))), None),
        listed_in=listed_in,
        listed_where=listed_where,
    )


def _holds(optimizer: Any, wanted: set[int]) -> int:
    return sum(id(parameter) in wanted for group in optimizer.param_groups for parameter in group["params"])


def _listed(holding: Sequence[Any], modules: Sequence[Any], known: Parents) -> tuple[str, str | None]:
    """The attribute of a module that holds some of these, or the modules they are in, in a plain list, tuple or dict.

    With the line that assigns it; torch does not register what is held like that.
    """
    roots = {id(_root(module, known)) for module in holding}
    for module in modules:
        for name, value in vars(module).items():
            parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
            if name.startswith("_") or not any(id(part) in roots for part in islice(parts, _MOST)):
                continue
            return f"{type(module).__name__}.{name}", assigned_at(type(module), name)
    return "", None


def _root(module: Any, known: Parents) -> Any:
    for _ in range(DEEPEST):
        if id(module) not in known:
            break
        module = known[id(module)][0]
    return module


def _named(paths: Sequence[str]) -> list[str]:
    """The paths; of many only their first parts."""
    for parts in range(DEEPEST, 0, -1):
        short = list(dict.fromkeys(".".join(path.split(".")[:parts]) for path in paths))
        if len(short) <= _NAMED:
            return short
    return short[:_NAMED] if paths else []

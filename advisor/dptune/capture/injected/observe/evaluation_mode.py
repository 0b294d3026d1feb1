"""Whether an optimizer updates a model that is in evaluation mode, and which line put it there.

A step costs the look at one module of the model: the first that is in training mode ends the search.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.optim import Optimizer

from dptune.capture.injected.observe.module_paths import DEEPEST, Parents, all_modules, parents, path_of
from dptune.capture.injected.observe.places import Places, users_function
from dptune.capture.injected.observe.validation import keeps_evaluation_mode
from dptune.runfile.evaluation_mode import EvaluationModeFacts

_NAMED = 2
_LINES = 100


@dataclass
class _Updated:
    """What an optimizer updates: the modules that hold its parameters, and all modules of the model, by identity."""

    optimizer: weakref.ref[Any]
    modules: Sequence[weakref.ref[Any]]
    around: frozenset[int]
    facts: EvaluationModeFacts


class EvaluationMode:
    """Looks at the mode of the model at each recorded optimizer step."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._updated: dict[int, _Updated] = {}
        self._ran: set[str | None] = set()  # lines that have called `.eval()`
        self._evals: dict[int, tuple[weakref.ref[Any], str | None]] = {}  # the latest last

    def install(self) -> None:
        """Note where the script calls `.eval()`."""
        evaluate = nn.Module.eval

        @functools.wraps(evaluate)
        def watched(this: Any) -> Any:
            with contextlib.suppress(Exception):
                self._evals.pop(id(this), None)
                if len(self._evals) >= _LINES:
                    self._evals.pop(next(iter(self._evals)))
                line = users_function(sys._getframe(1))
                self._evals[id(this)] = (weakref.ref(this), line)
                if len(self._ran) < _LINES:
                    self._ran.add(line)
            return evaluate(this)

        nn.Module.eval = watched  # type: ignore[method-assign, assignment]

    def begin(self) -> None:
        """Find the layers of the models; the steps from now on are looked at."""
        with contextlib.suppress(Exception):  # modules may be anything
            holders, known = _holders()
            for optimizer in self._places.alive(Optimizer):
                updated = _updated(optimizer, holders, known)
                if updated is not None:
                    self._updated[id(optimizer)] = updated
                    updated.facts.keeps_where = keeps_evaluation_mode(sys._getframe(1), updated.around)

    def stepped(self, optimizer: Any) -> None:
        """An optimizer has made a step."""
        with contextlib.suppress(Exception):
            updated = self._updated.get(id(optimizer))
            if updated is None or updated.optimizer() is not optimizer:
                return
            facts = updated.facts
            facts.recorded_steps += 1
            if any(module.training for ref in updated.modules if (module := ref()) is not None):
                facts.trained_before = facts.trained_before or not facts.steps
            else:
                facts.steps += 1
                facts.eval_where = facts.eval_where or self._line(updated.around)

    def facts(self) -> list[EvaluationModeFacts]:
        """Of the optimizers that have made a step in evaluation mode, or will once the script gets to a line."""
        found = [updated.facts for updated in self._updated.values()]
        for mode_facts in found:
            if mode_facts.keeps_where in self._ran:  # then the steps show what comes of it
                mode_facts.keeps_where = None
        return [
            mode_facts
            for mode_facts in found
            if mode_facts.steps or (mode_facts.keeps_where and mode_facts.recorded_steps)
        ]

    def _line(self, around: frozenset[int]) -> str | None:
        for at, (module, line) in reversed(self._evals.items()):
            if at in around and module() is not None:
                return line
        return None


def layers_of(optimizer: Any) -> tuple[Any, list[Any], list[Any]] | None:
    """The model that an optimizer updates, with its dropout and trained BatchNorm layers; None if it has neither."""
    found = _model(optimizer, *_holders())
    if found is None:
        return None
    dropouts, norms = _changed(found[0], optimizer)
    return (found[0], dropouts, norms) if dropouts or norms else None


def _holders() -> tuple[dict[int, Any], Parents]:
    """By parameter, the module that holds it; by module, its parents."""
    modules = all_modules()
    holders = {
        id(parameter): module
        for module in modules
        for parameter in module._parameters.values()
        if parameter is not None
    }
    return holders, parents(modules)


def _model(optimizer: Any, holders: dict[int, Any], known: Parents) -> tuple[Any, list[Any], list[list[Any]]] | None:
    """The innermost module around all parameters, and the modules that hold them, with the paths to these."""
    parameters = [param for group in optimizer.param_groups for param in group["params"] if param.requires_grad]
    holding = {id(module): module for param in parameters if (module := holders.get(id(param))) is not None}
    if not holding:
        return None
    paths = [_above(module, known) for module in holding.values()]
    model = _common(paths)
    return None if model is None else (model, list(holding.values()), paths)


def _changed(model: Any, optimizer: Any) -> tuple[list[Any], list[Any]]:
    """The layers of the model that evaluation mode changes."""
    trained = {id(param) for group in optimizer.param_groups for param in group["params"] if param.requires_grad}
    inside = list(model.modules())
    return [each for each in inside if _drops(each)], [each for each in inside if _normalizes(each, trained)]


def _updated(optimizer: Any, holders: dict[int, Any], known: Parents) -> _Updated | None:
    """None if evaluation mode does not change the model, or no module holds the parameters."""
    found = _model(optimizer, holders, known)
    if found is None:
        return None
    model, holding, paths = found
    dropouts, norms = _changed(model, optimizer)
    if not dropouts and not norms:
        return None
    layers = [*dropouts, *norms]
    facts = EvaluationModeFacts(type(model).__name__, len(dropouts), len(norms))
    facts.names = [path_of(layer, known) for layer in layers[:_NAMED]]
    around = frozenset(map(id, (*model.modules(), *paths[0][: paths[0].index(model)])))
    looked_at = {id(watched_module): watched_module for watched_module in (*holding, *layers)}.values()
    return _Updated(
        weakref.ref(optimizer), [weakref.ref(watched_module) for watched_module in looked_at], around, facts
    )


def _above(module: Any, known: Parents) -> list[Any]:
    """The modules around one, outermost first, and itself."""
    found = [module]
    while id(found[-1]) in known and len(found) < DEEPEST:
        found.append(known[id(found[-1])][0])
    return found[::-1]


def _common(paths: Iterable[Sequence[Any]]) -> Any:
    """The innermost module that is on all paths; None without one."""
    found = None
    for level in zip(*paths, strict=False):
        if any(a is not b for a, b in pairwise(level)):
            break
        found = level[0]
    return found


def _drops(module: Any) -> bool:
    if isinstance(module, _DropoutNd):
        return module.p > 0
    if isinstance(module, nn.RNNBase):
        return module.dropout > 0 and module.num_layers > 1
    return isinstance(module, nn.MultiheadAttention) and module.dropout > 0


def _normalizes(module: Any, trained: set[int]) -> bool:
    return isinstance(module, _BatchNorm) and module.running_mean is not None and id(module.weight) in trained

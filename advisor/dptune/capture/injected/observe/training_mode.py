"""Whether the model that is trained is evaluated in training mode.

Evaluation is a call of the model with gradients disabled, on the batch that a loader has just returned with gradients
disabled. Calls that collect BatchNorm statistics on purpose are left out, by the names of the functions that make them.
Calls of modules are watched only between such a batch and the next batch or optimizer step of training.
"""

from __future__ import annotations

import contextlib
import re
import sys
import weakref
from types import FrameType
from typing import Any

import torch
from torch.optim import Optimizer

from dptune.capture.injected.observe.evaluation_mode import layers_of
from dptune.capture.injected.observe.evaluation_source import evaluation_without_mode
from dptune.capture.injected.observe.module_calls import ModuleCalls
from dptune.capture.injected.observe.module_paths import all_modules
from dptune.capture.injected.observe.passes import is_captured
from dptune.capture.injected.observe.places import Places, users_line
from dptune.runfile.training_mode import TrainingModeFacts

_COLLECTS = re.compile(r"(?i)(bn|batch_?norm|stat|calibrat|swa|monte|mc_|uncertain|ensemble|pseudo|teacher)")
_FRAMES = 12


class TrainingMode:
    """Counts the calls of each trained model on batches drawn without gradients."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._given: dict[int, weakref.ref[Any]] = {}  # tensors of the batch that was drawn last, without gradients
        self._calls = ModuleCalls()
        self._facts: list[TrainingModeFacts] = []

    def begin(self) -> None:
        """Watch the models of all optimizers from now on."""
        if self._places.compiled:
            return
        with contextlib.suppress(Exception):  # modules may be anything
            seen: set[int] = set()
            for optimizer in self._places.alive(Optimizer):
                found = layers_of(optimizer)
                if found is None or id(found[0]) in seen:
                    continue
                model, dropouts, norms = found
                seen.add(id(model))
                facts = TrainingModeFacts(type(model).__name__, len(dropouts), len(norms))
                if all(layer.training for layer in (*dropouts, *norms)):
                    around = frozenset(map(id, (model, *wrappers_of(model))))
                    facts.ahead = evaluation_without_mode(sys._getframe(1), around, is_collecting)
                self._watch(model, [*dropouts, *norms], facts)

    def drawn(self, batch: Any) -> None:
        """A loader has returned this batch."""
        if not self._facts:
            return
        if torch.is_grad_enabled():
            self.stepped()
        else:
            self._given = {id(tensor): weakref.ref(tensor) for tensor in _tensors(batch)}
            self._calls.begin()

    def stepped(self) -> None:
        """An optimizer has taken a step: evaluation is over."""
        if self._calls.watching:
            self._given = {}
            self._calls.pause()

    def facts(self) -> list[TrainingModeFacts]:
        """The facts of models that were evaluated in training mode, or will be at a later line."""
        return [facts for facts in self._facts if facts.training or (facts.ahead and not facts.calls)]

    def _watch(self, model: Any, layers: list[Any], facts: TrainingModeFacts) -> None:
        refs = [weakref.ref(layer) for layer in layers]

        def called(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not self._given or torch.is_grad_enabled() or is_captured():
                return
            if self._is_evaluated((*args, *kwargs.values())) and not _collects(sys._getframe(1)):
                facts.calls += 1
                if all(layer.training for ref in refs if (layer := ref()) is not None):
                    facts.training += 1
                    facts.where = facts.where or users_line(sys._getframe(1))

        self._calls.before(model, called)
        self._facts.append(facts)

    def _is_evaluated(self, given: tuple[Any, ...]) -> bool:
        """Whether the model gets a tensor of the batch, or one of the same shape: its copy on the device."""
        drawn = [tensor for ref in self._given.values() if (tensor := ref()) is not None]
        shapes = {tuple(tensor.shape) for tensor in drawn}
        return any(tuple(tensor.shape) in shapes for tensor in _tensors(given))


def wrappers_of(model: Any) -> list[Any]:
    """The modules that wrap it, as DDP does."""
    return [module for module in all_modules() if (module.__dict__.get("_modules") or {}).get("module") is model]


def _tensors(batch: Any) -> list[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        return [batch]
    parts = list(batch.values()) if isinstance(batch, dict) else batch if isinstance(batch, (list, tuple)) else ()
    return [tensor for part in parts[:32] for tensor in _tensors(part)]


def is_collecting(name: str) -> bool:
    """Whether a function of that name may want a model in training mode."""
    return _COLLECTS.search(name) is not None


def _collects(frame: FrameType | None) -> bool:
    for _ in range(_FRAMES):
        if frame is None:
            return False
        if is_collecting(frame.f_code.co_name):
            return True
        frame = frame.f_back
    return False

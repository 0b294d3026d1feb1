"""Watches BatchNorm layers in the warm-up steps: which of them run in training mode with frozen parameters.

The forward methods of the classes are wrapped until the first window opens, and `nn.Module.train` until then, too:
nothing is left on the script's modules, which may be copied or saved meanwhile.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import SyncBatchNorm, _BatchNorm

from dptune.capture.injected.observe.module_paths import DEEPEST, Parents, joined, parents
from dptune.capture.injected.observe.places import Places, caller, is_the_users, users_line
from dptune.capture.injected.observe.tensor_samples import Sample, changes, samples
from dptune.runfile.frozen_norms import FrozenNormFacts

_LAYERS = 10_000
_NAMED = 2
_PARTS = 3


@dataclass
class _Layer:
    module: weakref.ref[Any]
    where: str | None
    trained: bool = False  # in one of its passes in training mode
    with_graph: bool = False  # it ran where gradients are enabled
    before: list[Sample] = field(default_factory=list)  # its weights when it ran first
    versions: list[int] = field(default_factory=list)

    def is_averaged(self) -> bool:
        """Whether its weights change, although no optimizer trains them: an average of another part follows that."""
        return self.versions != _versions(self.before) or any(map(bool, changes(self.before)))


class FrozenNorms:
    """The layers that ran in training mode, and the line that switched it on."""

    def __init__(self, places: Places, ran: Callable[[Any, Any], None] = lambda module, given: None) -> None:
        self._places = places
        self._ran = ran  # called with each layer that runs in training mode, and its input
        self._layers: dict[int, _Layer] = {}
        self._line: str | None = None
        self._train = nn.Module.train
        self._wrapped_train: Any = None
        self._forwards: list[tuple[Any, Any, Any]] = []  # class, its method, the wrapped one
        self._facts: FrozenNormFacts | None = None

    def install(self) -> None:
        """Note where the script calls `.train()`."""
        train = self._train

        @functools.wraps(train)
        def watched(this: Any, mode: bool = True) -> Any:
            with contextlib.suppress(Exception):
                frame = caller(sys._getframe(1))
                if mode and frame is not None and is_the_users(frame.f_code.co_filename):
                    self._line = users_line(frame)
            return train(this, mode)

        self._wrapped_train = watched
        nn.Module.train = watched  # type: ignore[method-assign, assignment]

    def begin(self) -> None:
        """Watch the layers from now on, but none that torch.compile reads."""
        if self._places.compiled:
            return
        for kind in (_BatchNorm, SyncBatchNorm):
            forward = kind.forward

            @functools.wraps(forward)
            def watched(this: Any, *args: Any, forward: Any = forward, **kwargs: Any) -> Any:
                if torch.compiler.is_compiling():
                    return forward(this, *args, **kwargs)
                with contextlib.suppress(Exception):
                    if this.training:
                        self._note(this)
                        self._ran(this, args[0] if args else kwargs.get("input"))
                return forward(this, *args, **kwargs)

            kind.forward = watched  # type: ignore[method-assign, assignment]
            self._forwards.append((kind, forward, watched))

    def end(self) -> None:
        """Watch no more, and find where in the model the layers are."""
        if nn.Module.train is self._wrapped_train:
            nn.Module.train = self._train  # type: ignore[method-assign]
        for kind, forward, watched in self._forwards:
            if kind.forward is watched:
                kind.forward = forward
        self._forwards = []
        with contextlib.suppress(Exception):  # modules may be anything
            self._facts = self._found()
        self._layers = {}

    def facts(self) -> FrozenNormFacts | None:
        """None where there are none."""
        return self._facts

    def _note(self, module: Any) -> None:
        layer = self._layers.get(id(module))
        if layer is None or layer.module() is not module:
            if len(self._layers) >= _LAYERS or module.running_mean is None or module.weight is None:
                return
            layer = self._layers[id(module)] = _Layer(weakref.ref(module), users_line(sys._getframe(2)))
            layer.before = samples(module.parameters(recurse=False))
            layer.versions = _versions(layer.before)
        layer.trained = layer.trained or _is_trained(module, recurse=False)
        layer.with_graph = layer.with_graph or torch.is_grad_enabled()

    def _found(self) -> FrozenNormFacts | None:
        frozen = [layer for layer in self._layers.values() if not layer.trained]
        layers = [layer for layer in frozen if (module := layer.module()) is not None and module.training]
        layers = [layer for layer in layers if not layer.is_averaged()]
        if not layers:
            return None
        known = parents()
        found = FrozenNormFacts(0, train_where=self._line)
        for layer in layers:
            path, part, whole = _place(layer.module(), known)
            if whole and not layer.with_graph:
                continue  # all of the model is frozen, and only looked at: a teacher, or an average of weights
            found.layers += 1
            found.runs_at = found.runs_at or layer.where
            if len(found.names) < _NAMED:
                found.names.append(path)
            if part not in found.parts and len(found.parts) < _PARTS:
                found.parts.append(part)
        return found if found.layers else None


def _place(module: Any, known: Parents) -> tuple[str, str, bool]:
    """Its path in the model, that of the outermost module around it without a trained parameter, and if that is all."""
    names: list[str] = []
    part, frozen = module, True
    frozen_at = 0
    for _ in range(DEEPEST):
        if id(module) not in known:
            break
        module, name = known[id(module)]
        names.append(name)
        frozen = frozen and not _is_trained(module)
        if frozen:
            part, frozen_at = module, len(names)
    path, inside = (joined(some) for some in (names, names[frozen_at:]))
    return path, inside or type(part).__name__, frozen


def _versions(weights: list[Sample]) -> list[int]:
    return [weight._version for ref, _ in weights if (weight := ref()) is not None]


def _is_trained(module: Any, *, recurse: bool = True) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters(recurse=recurse))

"""Counts the samples over which BatchNorm layers normalize in training, in the warm-up steps.

`FrozenNorms` shows the calls. A layer that synchronizes its statistics over ranks, or that had more samples in one of
its calls, is no layer of few samples. Neither is one without running statistics: it normalizes alike in evaluation.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.modules.batchnorm import SyncBatchNorm

from dptune.capture.injected.observe.module_paths import parents, path_of
from dptune.capture.injected.observe.places import users_line
from dptune.runfile.norm_samples import NormSampleFacts

_LAYERS = 10_000
_FEW = 4  # samples
_CALLS = 2  # at least
_NAMED = 2


@dataclass
class _Layer:
    module: weakref.ref[Any]
    where: str | None
    calls: int = 0
    samples: int = 0  # the most
    values: int = 0


class NormSamples:
    """The trained layers, by their calls with gradients."""

    def __init__(self) -> None:
        self._layers: dict[int, _Layer] = {}
        self._facts: NormSampleFacts | None = None

    def ran(self, module: Any, given: Any) -> None:
        """A layer in training mode is called with this."""
        if not torch.is_grad_enabled() or not isinstance(given, torch.Tensor) or given.dim() < 2:
            return
        if module.running_mean is None:
            return
        layer = self._layers.get(id(module))
        if layer is None or layer.module() is not module:
            if len(self._layers) >= _LAYERS or not any(each.requires_grad for each in module.parameters(recurse=False)):
                return
            layer = self._layers[id(module)] = _Layer(weakref.ref(module), users_line(sys._getframe(2)))
        layer.calls += 1
        layer.samples = max(layer.samples, _ranks(module) * given.shape[0])
        layer.values = max(layer.values, _ranks(module) * given.numel() // max(1, given.shape[1]))

    def end(self) -> None:
        """Find the layers of few samples."""
        with contextlib.suppress(Exception):  # modules may be anything
            self._facts = self._found()
        self._layers = {}

    def facts(self) -> NormSampleFacts | None:
        """None where there are none."""
        return self._facts

    def _found(self) -> NormSampleFacts | None:
        layers = [layer for layer in self._layers.values() if layer.calls >= _CALLS and layer.module() is not None]
        few = [layer for layer in layers if layer.samples <= _FEW]
        if not few:
            return None
        known = parents()
        return NormSampleFacts(
            len(few),
            len(layers),
            samples=max(layer.samples for layer in few),
            values=max(layer.values for layer in few),
            names=[path_of(layer.module(), known) for layer in few[:_NAMED]],
            where=few[0].where,
        )


def _ranks(module: Any) -> int:
    """Over whose samples it normalizes."""
    if not isinstance(module, SyncBatchNorm) or not dist.is_initialized():
        return 1
    return dist.get_world_size(module.process_group)

"""Samples the weights and gradients of optimizer steps, which ranks that average gradients should have in common.

In warm-up steps only, of whole parameters: a few weights before a step, and a few gradients after it, which the step
may have averaged itself. They are copied on their device, and read when the first window opens.
"""

from __future__ import annotations

import contextlib
import hashlib
import weakref
from array import array
from collections import deque
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from dptune.capture.injected.observe import process_rank
from dptune.capture.injected.observe.passes import is_captured
from dptune.capture.injected.observe.places import Places
from dptune.capture.injected.observe.tensor_samples import elements, is_readable
from dptune.runfile.step_values import StepValueFacts, StepValues

_OPTIMIZERS = 8
_TENSORS = 32  # of an optimizer, spread evenly: some milliseconds of small copies in each step
_KEPT = 2  # steps: ranks may have recorded one more than others


@dataclass
class _Step:
    """Samples of the weights by their index, and of the gradients of those that have one."""

    number: int
    weights: dict[int, torch.Tensor]
    gradients: dict[int, torch.Tensor] = field(default_factory=dict)


@dataclass
class _Watched:
    optimizer: weakref.ref[Any]
    facts: StepValueFacts
    made: int = 0
    steps: deque[_Step] = field(default_factory=lambda: deque(maxlen=_KEPT))


class SampledSteps:
    """Watches optimizers of ranks that train together, and hold whole parameters."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._inside = 0  # a step may call that of another class
        self._watched: dict[int, _Watched] = {}
        self._handles: list[Any] = []
        self._facts: list[StepValueFacts] = []

    def begin(self) -> None:
        """Watch from now on; not a rank that is alone, and no engine that keeps gradients or shards."""
        places = self._places
        if not process_rank.together() or places.engine or places.alive("FullyShardedDataParallel"):
            return
        self._handles = [
            register_optimizer_step_pre_hook(lambda optimizer, *_: self._begins(optimizer)),
            register_optimizer_step_post_hook(lambda optimizer, *_: self._ended(optimizer)),
        ]

    def end(self) -> None:
        """Watch no more, and read the samples."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        with contextlib.suppress(Exception):
            self._facts = [_read(watched) for watched in self._watched.values()]
        self._watched = {}

    def facts(self) -> list[StepValueFacts]:
        """Of each optimizer, in the order of their first steps."""
        return self._facts

    def _begins(self, optimizer: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self._inside += 1
        if self._inside > 1 or is_captured():
            return
        with contextlib.suppress(Exception):  # parameters may be anything
            watched = self._of(optimizer)
            if watched is not None:
                watched.made += 1
                watched.steps.append(
                    _Step(watched.made, {at: elements(each) for at, each in _sampled(optimizer) if _is_whole(each)})
                )

    def _ended(self, optimizer: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self._inside = max(0, self._inside - 1)
        watched = self._watched.get(id(optimizer))
        if watched is None or watched.optimizer() is not optimizer or not watched.steps or is_captured():
            return
        with contextlib.suppress(Exception):
            step = watched.steps[-1]
            for at, parameter in _sampled(optimizer):
                gradient = parameter.grad
                if at in step.weights and gradient is not None and _is_whole(gradient):
                    step.gradients[at] = elements(gradient)

    def _of(self, optimizer: Any) -> _Watched | None:
        known = self._watched.get(id(optimizer))
        if known is not None and known.optimizer() is optimizer:
            return known
        if len(self._watched) >= _OPTIMIZERS:
            return None
        facts = StepValueFacts(type(optimizer).__name__, self._places.line(optimizer))
        self._watched[id(optimizer)] = _Watched(weakref.ref(optimizer), facts)
        return self._watched[id(optimizer)]


def _sampled(optimizer: Any) -> list[tuple[int, Any]]:
    """Parameters with their index: the first, the last, and some between them."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    count, last = min(_TENSORS, len(parameters)), len(parameters) - 1
    indices = [at * last // max(1, count - 1) for at in range(count)]
    return [(at, parameters[at]) for at in indices]


def _is_whole(tensor: Any) -> bool:
    """Whether it is an ordinary dense tensor of real numbers, and no shard."""
    dense = tensor.layout == torch.strided and tensor.is_floating_point() and not hasattr(tensor, "device_mesh")
    return dense and is_readable(tensor)


def _read(watched: _Watched) -> StepValueFacts:
    facts = watched.facts
    facts.steps = [values for step in watched.steps if (values := _values(step)) is not None]
    return facts


def _values(step: _Step) -> StepValues | None:
    """What ranks compare of a step; None without gradients, or where a value is not finite."""
    found = StepValues(step.number, "")
    digest = hashlib.blake2b(digest_size=8)
    for at, sample in sorted(step.gradients.items()):
        gradients = (sample.double() + 0.0).tolist()  # -0 is 0
        weights = step.weights[at].double().tolist()
        if not all(map(isfinite, (*gradients, *weights))):
            return None
        digest.update(array("q", [at, len(gradients)]).tobytes() + array("d", gradients).tobytes())
        found.distinct.append(len({*gradients} - {0.0}))
        found.sums.append(sum(weights))
        found.scales.append(sum(map(abs, weights)))
    found.gradients = digest.hexdigest()
    return found if found.sums else None

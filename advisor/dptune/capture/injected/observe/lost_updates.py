"""Counts 16-bit parameters that an optimizer's step leaves as they were, although they have gradients.

In warm-up steps only: a sample of the parameters is copied after each step of an optimizer, and compared after its next
one. It reads parameters and gradients, and waits for no device before the first window opens.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim import Optimizer

from dptune.capture.injected.observe.places import Places
from dptune.runfile.lost_updates import LostUpdateFacts

_HALVES = (torch.bfloat16, torch.float16)
_PLACES = 64  # of the sample, spread evenly over all 16-bit parameters of an optimizer
_ELEMENTS = 64  # at each of them
_STEPS = 8  # that are compared
_OPTIMIZERS = 8
_WARMING_UP = 0.5  # of the highest learning rate: below, a step loses updates that later ones do not


@dataclass(frozen=True)
class _Sampled:
    """Elements of one parameter after a step, in the order of its memory, and the distance between two of them."""

    parameter: weakref.ref[Any]
    group: int
    stride: int
    values: torch.Tensor


@dataclass
class _Watched:
    optimizer: weakref.ref[Any]
    facts: LostUpdateFacts
    sampled: list[_Sampled]
    counts: list[list[torch.Tensor]] = field(default_factory=list)  # of each step by parameter: sampled, unchanged


class LostUpdates:
    """Compares 16-bit parameters before and after the steps of torch's own optimizers."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._watching = False
        self._watched: dict[int, _Watched] = {}
        self._facts: list[LostUpdateFacts] = []

    def begin(self) -> None:
        """Take the first samples."""
        self._watching = True
        with contextlib.suppress(Exception):
            for optimizer in self._places.alive(Optimizer):
                self._sample(optimizer)

    def end(self) -> None:
        """Stop, and read the counts from their devices."""
        self._watching = False
        with contextlib.suppress(Exception):
            self._facts = [watched.facts for watched in self._watched.values() if _has_read(watched)]
        self._watched = {}

    def facts(self) -> list[LostUpdateFacts]:
        """Of each optimizer with 16-bit parameters."""
        return self._facts

    def stepped(self, optimizer: Any) -> None:
        """An optimizer has made a step: compare, and take the next sample."""
        if not self._watching:
            return
        with contextlib.suppress(Exception):
            if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
                return
            watched = self._watched.get(id(optimizer))
            if watched is not None and watched.optimizer() is optimizer and len(watched.counts) < _STEPS:
                self._compare(watched, optimizer)
            self._sample(optimizer)

    def _compare(self, watched: _Watched, optimizer: Any) -> None:
        counts = []
        for sampled in watched.sampled:
            parameter, group = sampled.parameter(), optimizer.param_groups[sampled.group]
            gradient = None if parameter is None else getattr(parameter, "grad", None)
            if gradient is None or not _is_at_full_rate(group, optimizer.defaults):
                continue
            values, slopes = _local(parameter), _local(gradient)
            if slopes.layout != torch.strided or slopes.stride() != values.stride() or slopes.shape != values.shape:
                continue
            moves = _elements(slopes, len(sampled.values), sampled.stride) != 0
            same = _elements(values, len(sampled.values), sampled.stride) == sampled.values
            counts.append(torch.stack((moves.sum(), (moves & same).sum())))
            watched.facts.learning_rate = float(group["lr"])
        if counts:
            watched.counts.append(counts)

    @torch.no_grad()
    def _sample(self, optimizer: Any) -> None:
        if not type(optimizer).__module__.startswith("torch.optim"):
            return  # it may round in another way, or hold what was lost
        known = self._watched.get(id(optimizer))
        if known is None or known.optimizer() is not optimizer:
            if len(self._watched) >= _OPTIMIZERS:
                return
            facts = LostUpdateFacts(type(optimizer).__name__, self._places.line(optimizer))
            known = self._watched[id(optimizer)] = _Watched(weakref.ref(optimizer), facts, [])
        halves = [
            (at, parameter) for at, group in enumerate(optimizer.param_groups) for parameter in _halves(group["params"])
        ]
        sizes: Counter[str] = Counter()
        for _, parameter in halves:
            sizes[str(parameter.dtype).removeprefix("torch.")] += _local(parameter).numel()
        known.facts.parameters = sizes.total()
        known.facts.dtype = sizes.most_common(1)[0][0] if sizes else ""
        known.sampled = list(_samples(halves, sizes.total()))


def _samples(halves: list[tuple[int, Any]], total: int) -> Iterator[_Sampled]:
    """The larger a parameter, the more of the sample it has."""
    passed = 0
    for group, parameter in halves:
        values = _local(parameter)
        before, passed = passed, passed + values.numel()
        places = passed * _PLACES // total - before * _PLACES // total
        count = min(places * _ELEMENTS, values.numel())
        if count:
            stride = values.numel() // count
            stride -= stride > 1 and stride % 2 == 0  # odd: not always the same columns of a matrix
            yield _Sampled(weakref.ref(parameter), group, stride, _elements(values, count, stride).clone())


def _halves(parameters: list[Any]) -> list[Any]:
    return [
        parameter
        for parameter in parameters
        if parameter.dtype in _HALVES and parameter.requires_grad and _is_dense(_local(parameter))
    ]


def _is_dense(values: torch.Tensor) -> bool:
    """Whether its elements fill one stretch of memory."""
    return values.layout == torch.strided and (
        values.is_contiguous()
        or (values.dim() == 4 and values.is_contiguous(memory_format=torch.channels_last))
        or (values.dim() == 5 and values.is_contiguous(memory_format=torch.channels_last_3d))
    )


def _local(tensor: Any) -> torch.Tensor:
    """What a rank holds of it."""
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return local.detach()


def _elements(values: torch.Tensor, count: int, stride: int) -> torch.Tensor:
    return values.as_strided((count,), (stride,), values.storage_offset())


def _is_at_full_rate(group: dict[str, Any], defaults: dict[str, Any]) -> bool:
    """Whether a group's learning rate is near the highest that a scheduler, or the script, has set for it."""
    highest = [group[name] for name in ("initial_lr", "max_lr") if name in group] or [defaults.get("lr", 0.0)]
    rate = float(group["lr"])
    return rate > 0 and rate >= _WARMING_UP * max(float(peak) for peak in highest)


def _has_read(watched: _Watched) -> bool:
    """Read the counts; whether there are any."""
    for step in watched.counts:
        sampled, unchanged = (sum(counts) for counts in zip(*(count.tolist() for count in step), strict=True))
        if sampled:
            watched.facts.sampled.append(sampled)
            watched.facts.unchanged.append(unchanged)
    return bool(watched.facts.sampled)

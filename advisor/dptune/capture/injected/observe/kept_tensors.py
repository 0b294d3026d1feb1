"""Counts the tensors that are alive between two windows, and finds what holds those that became more.

A look goes over all objects that Python tracks, and happens only between windows: never while steps are timed or
traced. Nothing is kept alive by it.
"""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from dptune.capture.injected.observe.tensor_holders import holder
from dptune.runfile.kept_tensors import KeptFacts, LookFacts

MOST_OBJECTS = 2_000_000  # that a look goes over
_SHAPES = 2
_SAMPLE, _SAMPLES = 3, 3  # of the tensors that became more: what holds them is looked for; one may be of this step
_LEAST_BYTES = 1 << 16  # of growth in a step, for that
_LEAST_GRAPHS = 0.9  # tensors with a graph that became more in a step: that, too
Kind = tuple[tuple[int, ...], torch.dtype, bool]


@dataclass
class _Look:
    facts: LookFacts
    bytes_of: Counter[Kind] = field(default_factory=Counter)
    graphs_of: Counter[Kind] = field(default_factory=Counter)


class Kept:
    """The looks of this process."""

    def __init__(self) -> None:
        self._looks: list[_Look] = []
        self._found = KeptFacts()

    def look(self, step: int, ours: Collection[Any]) -> None:
        """Count what is alive after that step, but tensors of `ours`."""
        with contextlib.suppress(Exception):  # objects may be anything
            self._look(step, {id(tensor) for tensor in ours})

    def facts(self) -> KeptFacts | None:
        """None before the second look."""
        if len(self._looks) < 2:
            return None
        self._found.looks = [look.facts for look in self._looks]
        return self._found

    def _look(self, step: int, ours: set[int]) -> None:
        objects = gc.get_objects()
        if len(objects) > MOST_OBJECTS:
            return
        tensors = [
            candidate
            for candidate in objects
            if type(candidate) in (torch.Tensor, nn.Parameter) and id(candidate) not in ours
        ]
        del objects
        look, seen = _Look(LookFacts(step)), set()
        of_kind: dict[Kind, list[Any]] = {}
        for tensor in tensors:
            if tensor.layout != torch.strided or tensor.device.type == "meta":
                continue
            look.facts.tensors += 1
            look.facts.with_graph += tensor.grad_fn is not None
            storage = tensor.untyped_storage()
            at = storage.data_ptr()
            if at in seen:
                continue
            seen.add(at)
            kind = tuple(tensor.shape), tensor.dtype, tensor.grad_fn is not None
            look.facts.bytes += storage.nbytes()
            look.bytes_of[kind] += storage.nbytes()
            look.graphs_of[kind] += tensor.grad_fn is not None
            of_kind.setdefault(kind, []).append(tensor)
        del tensors
        self._looks.append(look)
        self._compare(of_kind)

    def _compare(self, of_kind: dict[Kind, list[Any]]) -> None:
        """What became more since the first look, and what holds it."""
        first, last = self._looks[0], self._looks[-1]
        steps = last.facts.step - first.facts.step
        if steps and last.facts.bytes - first.facts.bytes >= _LEAST_BYTES * steps:
            more = (last.bytes_of - first.bytes_of).most_common(_SHAPES)
        elif steps and last.facts.with_graph - first.facts.with_graph >= _LEAST_GRAPHS * steps:
            more = (last.graphs_of - first.graphs_of).most_common(_SHAPES)
        else:
            return
        self._found.shapes = [f"{'x'.join(map(str, shape)) or '1'} {_name(dtype)}" for (shape, dtype, _), _ in more]
        candidates = of_kind[more[0][0]][-2 - _SAMPLE * _SAMPLES : -2]
        of_kind.clear()
        while len(candidates) >= 2:
            sample = candidates[-_SAMPLE:]
            del candidates[-_SAMPLE:]
            found = holder(sample)
            if found is not None:
                self._found.held_by, self._found.where, self._found.limited = found
                return


def optimizer_state(optimizers: Iterable[Any]) -> list[torch.Tensor]:
    """The tensors of their state: some optimizers keep a history of limited length, as LBFGS does."""
    states = [state for optimizer in optimizers for state in optimizer.state.values() if isinstance(state, dict)]
    values = [value for state in states for value in state.values()]
    return [
        tensor
        for value in values
        for tensor in (value if isinstance(value, list) else [value])
        if isinstance(tensor, torch.Tensor)
    ]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

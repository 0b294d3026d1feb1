"""Finds results of `nn.Module.state_dict()` that are kept without a copy while the module trains on.

Its tensors share memory with the parameters, so that optimizer steps change them as well. Some tensors of each result
are followed by weak references; two optimizer steps later they are looked at once. Results that are saved before are
left out. What the recording does not reach is looked for in the source of the script.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import nn

from dptune.capture.injected.imports import imports
from dptune.capture.injected.observe.kept_weights_source import Assignment, assignment_at, best_weights
from dptune.capture.injected.observe.places import is_the_users, users_place
from dptune.capture.injected.observe.script_files import script_files
from dptune.runfile.kept_weights import KeptWeightFacts

_TENSORS = 8  # of a result
_RESULTS = 8  # that are followed at a time
_CALLS = 256  # of state_dict that are looked at
_STEPS = 2  # after which a result is kept
_SAVED = 4096  # values of what is saved that are compared


@dataclass
class _Result:
    module: str
    file: str
    line: int
    step: int
    tensors: list[tuple[weakref.ref[Any], weakref.ref[Any]]]  # with the parameter
    updated: bool = False  # by an optimizer
    kept_steps: int = 0  # for which it is known to have been kept

    def alive(self) -> list[tuple[Any, Any]]:
        """The tensors that still exist, each with its parameter."""
        pairs = ((tensor(), parameter()) for tensor, parameter in self.tensors)
        return [(held, trained) for held, trained in pairs if held is not None and trained is not None]


class KeptWeights:
    """The results of `state_dict()` since the first optimizer step."""

    def __init__(self) -> None:
        self._results: list[_Result] = []
        self._kept: dict[tuple[str, int], _Result] = {}  # by line
        self._steps = 0
        self._calls = 0
        self._in_source: list[KeptWeightFacts] | None = None

    def install(self) -> None:
        """Watch `state_dict` and what saves its results."""
        take = nn.Module.state_dict

        @functools.wraps(take)
        def taken(this: Any, *args: Any, **kwargs: Any) -> Any:
            result = take(this, *args, **kwargs)
            if not args and not kwargs.get("destination") and self._steps:  # not of a module inside
                with contextlib.suppress(Exception):
                    self._note(this, result)
            return result

        nn.Module.state_dict = taken  # type: ignore[method-assign, assignment]
        self._watch_saving(torch, "save")
        imports.after("safetensors.torch", lambda module: self._watch_saving(module, "save_file"))

    def stepped(self, optimizer: Any) -> None:
        """An optimizer has made a step."""
        self._steps += 1
        if self._results:
            with contextlib.suppress(Exception):
                self._look(optimizer)

    def facts(self) -> list[KeptWeightFacts]:
        """One for each line that keeps weights."""
        found = {fact.where: fact for result in self._kept.values() if (fact := self._fact(result)) is not None}
        if self._in_source is None:
            self._in_source = []
            with contextlib.suppress(Exception):  # sources may be anything
                self._in_source = list(_in_source())
        return [*found.values(), *(fact for fact in self._in_source if fact.where not in found)]

    def _look(self, optimizer: Any) -> None:
        """Which of the results that are old enough still exist, and follow parameters that were updated."""
        updated = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for result in self._results:
            result.updated = result.updated or any(id(trained) in updated for _, trained in result.alive())
        due = [result for result in self._results if self._steps - result.step >= _STEPS]
        self._results = [result for result in self._results if self._steps - result.step < _STEPS]
        for result in due:
            alive = result.alive()
            if result.updated and len(alive) == len(result.tensors) and all(_shares(*pair) for pair in alive):
                result.kept_steps = self._steps - result.step
                self._kept[result.file, result.line] = result

    def _note(self, module: Any, result: Any) -> None:
        frame = sys._getframe(2)
        while frame is not None and not is_the_users(frame.f_code.co_filename):
            frame = frame.f_back  # type: ignore[assignment]
        if frame is None or self._calls >= _CALLS or len(self._results) >= _RESULTS:
            return
        if (frame.f_code.co_filename, frame.f_lineno) in self._kept:
            return
        self._calls += 1
        shared = [
            (tensor, parameter)
            for name, parameter in module.named_parameters()
            if parameter.requires_grad and _shares(tensor := result.get(name), parameter)
        ]
        chosen = shared[:: max(1, len(shared) // _TENSORS)][:_TENSORS]
        if chosen:
            tensors = [(weakref.ref(held), weakref.ref(trained)) for held, trained in chosen]
            name = type(module).__name__
            self._results.append(_Result(name, frame.f_code.co_filename, frame.f_lineno, self._steps, tensors))

    def _fact(self, result: _Result) -> KeptWeightFacts | None:
        if len(result.alive()) == len(result.tensors):
            result.kept_steps = self._steps - result.step
        assigned: Assignment | None = None
        with contextlib.suppress(Exception):
            assigned = assignment_at(result.file, result.line)
        if assigned is not None and not assigned.is_shared and assigned.used_line is None:
            return None  # a variable that is not read any more
        return KeptWeightFacts(
            module=result.module,
            where=users_place(result.file, result.line),
            tensors=len(result.tensors),
            steps=result.kept_steps,
            held_by=assigned.name if assigned else "",
            used_where=users_place(result.file, assigned.used_line) if assigned and assigned.used_line else None,
        )

    def _watch_saving(self, module: ModuleType, name: str) -> None:
        save = getattr(module, name)

        @functools.wraps(save)
        def saving(*args: Any, **kwargs: Any) -> Any:
            if self._results:
                with contextlib.suppress(Exception):
                    self._forget({id(value) for value in _values(args[0] if args else kwargs)})
            return save(*args, **kwargs)

        setattr(module, name, saving)

    def _forget(self, saved: set[int]) -> None:
        self._results = [result for result in self._results if not any(id(held) in saved for held, _ in result.alive())]


def _in_source() -> Iterator[KeptWeightFacts]:
    for file, variables in script_files().items():
        for assigned in best_weights(file, variables):
            yield KeptWeightFacts(
                where=users_place(file, assigned.line),
                held_by=assigned.name,
                used_where=users_place(file, assigned.used_line) if assigned.used_line else None,
            )


def _shares(tensor: Any, parameter: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor is not parameter and _address(tensor) == _address(parameter)


def _address(tensor: Any) -> int:
    return int(getattr(tensor, "_local_tensor", tensor).data_ptr())


def _values(saved: Any) -> Iterator[Any]:
    """Of dictionaries, lists and tuples inside of one another."""
    waiting = [saved]
    for _ in range(_SAVED):
        if not waiting:
            return
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, (list, tuple)):
            waiting += value
        else:
            yield value

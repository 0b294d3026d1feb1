"""In which state the processes that prepare batches first draw from generators that their data set holds.

Forked workers write into memory that they share with the training process; those that are spawned are not read. States
are read around the first batches of a process, and none is changed. Only data sets with an index are looked at: the
workers of an iterable one may need equal generators to divide its samples.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import mmap
import os
import random
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils import fetch

from dptune.capture.injected.observe.assignments import assigned_at
from dptune.capture.injected.observe.places import is_the_users
from dptune.runfile.generators import GeneratorFacts

_DATASETS, _EPOCHS, _PROCESSES, _GENERATORS = 4, 3, 17, 4  # that are looked at: the first ones
_FETCHES = 3  # of a process
_ROW = 512  # bytes
_LOOKED, _DREW = 1, 2
_DEEP, _OBJECTS, _ITEMS = 2, 256, 64
_PLAIN = (str, bytes, int, float, type, ModuleType, torch.Tensor)

_Held = dict[str, tuple[Any, str, Any]]  # by name: the generator, the attribute and what holds it


class Generators:
    """The states of generators, by data set, epoch and process."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._rows = mmap.mmap(-1, _DATASETS * _EPOCHS * _PROCESSES * _GENERATORS * _ROW)
        self._drew = mmap.mmap(-1, _DATASETS * _PROCESSES)  # by data set and process
        self._slots: dict[tuple[int, type], int] = {}  # a forked worker finds its data set at the same address
        self._epochs: dict[int, int] = {}
        self._collate: dict[int, Any] = {}
        self._fetches: dict[tuple[int, int], int] = {}
        self._written: dict[tuple[int, int], list[str]] = {}
        self._process = os.getpid()

    def install(self) -> None:
        """Look at generators before and after the first batches that a process prepares."""
        draw: Any = fetch._MapDatasetFetcher.fetch

        @functools.wraps(draw)
        def watched(this: Any, index: Any) -> Any:
            before = self._look(this.dataset)
            drawn = _global_states() if before is not None else ""
            batch = draw(this, index)
            if before is not None:
                self._note_draws(this.dataset, drawn)
            if before:
                self._compare(this.dataset, before)
            return batch

        fetch._MapDatasetFetcher.fetch = watched  # type: ignore[method-assign]

    def expect(self, dataset: Any, collate: Any) -> None:
        """A loader's iterator is about to be made in the training process. Not of interest where gradients are off."""
        with contextlib.suppress(Exception):
            if self._process != os.getpid():
                self._begin()
            key = (id(dataset), type(dataset))
            if not torch.is_grad_enabled() or (key not in self._slots and len(self._slots) >= _DATASETS):
                return
            slot = self._slots.setdefault(key, len(self._slots))
            self._epochs[slot] = self._epochs.get(slot, -1) + 1
            self._collate[slot] = getattr(collate, "__self__", collate)

    def facts(self, dataset: Any) -> list[GeneratorFacts]:
        """Of the generators that batches of a data set were made with."""
        slot = self._slots.get((id(dataset), type(dataset)))
        found: dict[str, GeneratorFacts] = {}
        places = [] if slot is None else [(epoch, process) for epoch in range(_EPOCHS) for process in range(_PROCESSES)]
        for epoch, process in places:
            for at in range(_GENERATORS):
                row = self._row(slot or 0, epoch, process, at)
                size = int.from_bytes(self._rows[row : row + 2], "little")
                if not size:
                    break
                name, kind, where, state = json.loads(self._rows[row + 2 : row + 2 + size])
                facts = found.setdefault(name, GeneratorFacts(name, kind, where))
                facts.workers.append(process - 1)
                facts.epochs.append(epoch)
                facts.states.append(state)
        return list(found.values())

    def draws(self, dataset: Any) -> bool | None:
        """Whether samples of a data set are made with random numbers; None where no process was looked at."""
        slot = self._slots.get((id(dataset), type(dataset)))
        if slot is None:
            return None
        found = self._drew[slot * _PROCESSES : (slot + 1) * _PROCESSES]
        return None if not any(found) else _DREW in found or bool(self.facts(dataset))

    def _row(self, slot: int, epoch: int, process: int, at: int) -> int:
        return (((slot * _EPOCHS + epoch) * _PROCESSES + process) * _GENERATORS + at) * _ROW

    def _look(self, dataset: Any) -> dict[str, tuple[Any, str]] | None:
        """The generators before a batch, each with its state; None after the first batches of a process."""
        with contextlib.suppress(Exception):  # a data set may hold anything
            slot = self._slots.get((id(dataset), type(dataset)))
            key = (os.getpid(), -1 if slot is None else slot)
            if slot is None or self._fetches.get(key, 0) >= _FETCHES:
                return None
            self._fetches[key] = self._fetches.get(key, 0) + 1
            held = _held(dataset, self._collate.get(slot))
            return {name: (generator, _state(generator)) for name, (generator, _, _) in held.items()}
        return None

    def _note_draws(self, dataset: Any, before: str) -> None:
        """Whether a batch was prepared with numbers of the generators that a process has."""
        with contextlib.suppress(Exception):
            slot, worker = self._slots[id(dataset), type(dataset)], get_worker_info()
            process = 0 if worker is None else 1 + worker.id
            if process < _PROCESSES:
                at = slot * _PROCESSES + process
                self._drew[at] = max(self._drew[at], _DREW if _global_states() != before else _LOOKED)

    def _compare(self, dataset: Any, before: dict[str, tuple[Any, str]]) -> None:
        with contextlib.suppress(Exception):
            slot = self._slots[id(dataset), type(dataset)]
            worker = get_worker_info()
            process, epoch = 0 if worker is None else 1 + worker.id, self._epochs[slot]
            written = self._written.setdefault((os.getpid(), slot), [])
            for name, (generator, attribute, holder) in _held(dataset, self._collate.get(slot)).items():
                known, state = before.get(name, (None, ""))
                after = _state(generator) if known is generator else state
                if after == state or name in written or process >= _PROCESSES or epoch >= _EPOCHS:
                    continue
                if len(written) < _GENERATORS:
                    drawn = state if _keeps_its_seed(generator) else f"{state} {after}"
                    text = json.dumps([name[:120], _kind(generator), assigned_at(holder, attribute), drawn]).encode()
                    self._write(self._row(slot, epoch, process, len(written)), text)
                    written.append(name)

    def _write(self, row: int, text: bytes) -> None:
        if len(text) <= _ROW - 2:
            self._rows[row + 2 : row + 2 + len(text)] = text
            self._rows[row : row + 2] = len(text).to_bytes(2, "little")


def _held(dataset: Any, collate: Any) -> _Held:
    """Generators of a data set and of what collates it: in their attributes, two levels deep, and their globals."""
    found: _Held = {}
    seen: set[int] = set()
    objects = [(dataset, 0), (collate, 0)]
    while objects and len(seen) < _OBJECTS:
        holder, depth = objects.pop(0)
        if id(holder) in seen or isinstance(holder, _PLAIN) or _is_generator(holder):
            continue
        seen.add(id(holder))
        attributes = getattr(holder, "__dict__", None) or {}
        for attribute, value in list(attributes.items()):
            for each in _items(value):
                if _is_generator(each):
                    found.setdefault(f"{type(holder).__name__}.{attribute}", (each, attribute, type(holder)))
                elif depth < _DEEP:
                    objects.append((each, depth + 1))
        module = sys.modules.get(getattr(holder, "__module__", "") or "")
        if module is not None and is_the_users(getattr(module, "__file__", None) or "<frozen"):
            for attribute, value in list(vars(module).items()):
                if _is_generator(value):
                    found.setdefault(attribute, (value, attribute, module))
    return found


def _items(value: Any) -> Iterator[Any]:
    """What a list, tuple or dict holds, where it is short, else the thing itself."""
    if isinstance(value, (list, tuple)):
        yield from value if len(value) <= _ITEMS else ()
    elif isinstance(value, Mapping):
        yield from value.values() if isinstance(value, dict) and len(value) <= _ITEMS else ()
    else:
        yield value


def _global_states() -> str:
    """Of the generators that each process has one of: torch's, Python's and numpy's."""
    digest = hashlib.blake2b(torch.default_generator.get_state().numpy().tobytes(), digest_size=8)
    digest.update(repr(random.getstate()).encode())
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        _digest(digest, numpy.random.get_state(legacy=False))
    return digest.hexdigest()


def _is_generator(value: Any) -> bool:
    """Whether it draws on the CPU, and is none that torch seeds for each worker."""
    if isinstance(value, torch.Generator):
        return value.device.type == "cpu" and value is not torch.default_generator
    if isinstance(value, random.Random):
        return not isinstance(value, random.SystemRandom) and value is not getattr(random, "_inst", None)
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, (numpy.random.Generator, numpy.random.RandomState)):
        return False
    return value is not numpy.random.mtrand._rand


def _kind(generator: Any) -> str:
    """Its class, by the name that scripts use."""
    package = type(generator).__module__.partition(".")[0]
    return f"{'numpy.random' if package == 'numpy' else package}.{type(generator).__name__}"


def _keeps_its_seed(generator: Any) -> bool:
    """Whether it cannot be seeded anew. The others may be, for each sample or worker: then the end of a batch shows."""
    return not isinstance(generator, (torch.Generator, random.Random)) and not hasattr(generator, "seed")


def _state(generator: Any) -> str:
    """Equal for generators that draw the same numbers from now on."""
    if isinstance(generator, torch.Generator):
        state: Any = generator.get_state().numpy()
    elif isinstance(generator, random.Random):
        state = generator.getstate()
    else:
        state = generator.get_state(legacy=False) if hasattr(generator, "get_state") else generator.bit_generator.state
    digest = hashlib.blake2b(digest_size=8)
    _digest(digest, state)
    return digest.hexdigest()


def _digest(digest: Any, state: Any) -> None:
    if isinstance(state, Mapping):
        state = [part for item in state.items() for part in item]
    if hasattr(state, "tobytes"):
        digest.update(state.tobytes())
    elif isinstance(state, (list, tuple)):
        for part in state:
            _digest(digest, part)
    else:
        digest.update(repr(state).encode())

"""What preparing a batch is made of: reading and transforming samples, and collating them, wherever that is done.

Worker processes that are forked write into memory that they share with the training process; those that are spawned
are not metered.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import threading
import time
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

import torch
from torch.utils.data import IterableDataset, Subset, get_worker_info
from torch.utils.data._utils import fetch

from dptune.capture.injected.observe.places import users_code
from dptune.runfile.loader import PreparingFacts

_DATASETS, _WORKERS = 8, 64  # those that are metered: the first ones
_BATCHES, _READING, _READING_CPU, _COLLATING, _COLLATING_CPU, _TENSORS, _BYTES = _FIELDS = range(7)
_LONG = 8  # bytes of a number
_WRAPPERS = 2  # of a function, by objects of libraries
_PARTS = 512  # of a batch that are searched for tensors


class Preparing:
    """Counts batches and the time they take, by data set and by the process that prepares them."""

    def __init__(self) -> None:
        self._begin()
        self._collating = threading.local()
        self.fetched: Callable[[int], None] = lambda spent_ns: None  # in a process that has no workers

    def _begin(self) -> None:
        # A number has one writer: the workers of a loader, and the process that trains, have rows of their own.
        self._numbers = memoryview(mmap.mmap(-1, _DATASETS * _WORKERS * len(_FIELDS) * _LONG)).cast("q")
        self._slots: dict[tuple[int, type], int] = {}  # a forked worker finds its data set at the same address
        self._process = os.getpid()

    def install(self) -> None:
        """Wrap what fetches batches in the training process and in workers."""
        begin = fetch._BaseDatasetFetcher.__init__

        @functools.wraps(begin)
        def begun(this: Any, dataset: Any, auto_collation: bool, collate_fn: Any, drop_last: bool) -> None:
            begin(this, dataset, auto_collation, self._timed(collate_fn), drop_last)

        fetch._BaseDatasetFetcher.__init__ = begun  # type: ignore[method-assign, assignment]
        for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
            self._meter(kind)

    def expect(self, dataset: Any) -> None:
        """A loader is about to be drawn from: called in the training process, before workers are made.

        A rank that was forked from another process has numbers of its own.
        """
        if self._process != os.getpid():
            self._begin()
        key = (id(dataset), type(dataset))
        if key not in self._slots and len(self._slots) < _DATASETS:
            self._slots[key] = len(self._slots)

    def facts(self, loader: Any) -> PreparingFacts | None:
        """What was metered of a loader's data set so far; None where nothing was."""
        slot = self._slots.get((id(loader.dataset), type(loader.dataset)))
        if slot is None:
            return None
        rows = range(slot * _WORKERS, (slot + 1) * _WORKERS)
        sums = [sum(self._numbers[row * len(_FIELDS) + field] for row in rows) for field in _FIELDS]
        if not sums[_BATCHES]:
            return None
        return PreparingFacts(
            batches=sums[_BATCHES],
            reading_ns=sums[_READING],
            reading_cpu_ns=sums[_READING_CPU],
            collating_ns=sums[_COLLATING],
            collating_cpu_ns=sums[_COLLATING_CPU],
            read_by=named(reader(loader.dataset)),
            collated_by=named(loader.collate_fn),
            tensors=sums[_TENSORS],
            tensor_bytes=sums[_BYTES],
        )

    def _meter(self, kind: Any) -> None:
        draw = kind.fetch

        @functools.wraps(draw)
        def metered(this: Any, index: Any) -> Any:
            slot = self._slots.get((id(this.dataset), type(this.dataset)))
            self._collating.spent = 0, 0
            begun, computed = time.perf_counter_ns(), time.thread_time_ns()
            batch = draw(this, index)
            took, took_cpu = time.perf_counter_ns() - begun, time.thread_time_ns() - computed
            collating, collating_cpu = self._collating.spent
            if get_worker_info() is None:
                self.fetched(took)
            if slot is not None:
                times = took - collating, took_cpu - collating_cpu, collating, collating_cpu
                self._add(slot, (1, *times, *_tensors(batch)))
            return batch

        kind.fetch = metered

    def _timed(self, collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def timed(samples: Any) -> Any:
            begun, computed = time.perf_counter_ns(), time.thread_time_ns()
            try:
                return collate(samples)
            finally:
                self._collating.spent = time.perf_counter_ns() - begun, time.thread_time_ns() - computed

        return timed

    def _add(self, slot: int, more: tuple[int, ...]) -> None:
        worker = get_worker_info()
        at = 0 if worker is None else 1 + worker.id
        if at < _WORKERS:
            first = (slot * _WORKERS + at) * len(_FIELDS)
            for field, value in enumerate(more):
                self._numbers[first + field] += value


def _tensors(batch: Any) -> tuple[int, int]:
    """The number of tensors in the first parts of a batch, and their bytes; lists, tuples and mappings are searched."""
    parts, count, size = [batch], 0, 0
    with contextlib.suppress(Exception):  # a batch may be anything
        for part in parts:
            if isinstance(part, torch.Tensor):
                count += 1
                size += part.numel() * part.element_size()
            elif isinstance(part, (list, tuple)):
                parts.extend(part[: _PARTS - len(parts)])
            elif isinstance(part, Mapping):
                parts.extend(list(part.values())[: _PARTS - len(parts)])
    return count, size


def reader(dataset: Any) -> Any:
    """The method of the data set that reads samples; of a part of another one that of the whole."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    names = ("__iter__",) if isinstance(dataset, IterableDataset) else ("__getitems__", "__getitem__")
    return next((method for method in (getattr(type(dataset), name, None) for name in names) if method), None)


def called_code(function: Any) -> CodeType | None:
    """The code of what is called; None where that is not Python's."""
    return getattr(_called(function), "__code__", None)


def _called(function: Any, wrappers: int = _WRAPPERS) -> Any:
    """The function that a partial one, or an object that can be called, runs.

    A library's object may hold the script's only function, as transformers' collator that drops columns does.
    """
    while isinstance(function, functools.partial):
        function = function.func
    by_class = getattr(type(function), "__call__", None)  # noqa: B004 - what an object that can be called runs
    code = getattr(by_class, "__code__", None)
    if hasattr(function, "__code__") or code is None:
        return function
    if wrappers and users_code(code) is None and not isinstance(function, torch.nn.Module):
        held = [_called(each, wrappers - 1) for each in getattr(function, "__dict__", {}).values() if callable(each)]
        scripts = [each for each in held if users_code(getattr(each, "__code__", None)) is not None]
        if len(scripts) == 1:
            return scripts[0]
    return by_class


def named(function: Any) -> str | None:
    """`name (file:line)` of what is called; the name alone where it is no user's."""
    function = _called(function)
    code = called_code(function)
    name = getattr(function, "__name__" if code is None else "__qualname__", None)
    line = users_code(code)
    return f"{name} ({line})" if name and line else name

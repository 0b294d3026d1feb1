"""Finds held-out samples that overlap training samples: windows of one series that were split at random.

Whether windows overlap is read from where they lie in memory: a tensor of the data set that overlaps itself, as
`unfold` makes it, or samples of one of the first batches, which are all alive. Two of them may share bytes; or their
addresses grow by the same number of bytes with the index, and a sample moved by that number shares bytes with itself.
Which are held out follows from the indices of Subsets and of SubsetRandomSamplers over one data set; nothing of the
script is called.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import sys
import weakref
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset, SubsetRandomSampler
from torch.utils.data._utils import fetch

from dptune.capture.injected.observe.places import Places, users_function
from dptune.runfile.split_windows import SplitWindowFacts

_FETCHES = 4  # of a process and a kind of data set
_SLOTS = 64  # of the memory that workers share with the training process
_SAMPLES = 64  # of a batch
_PARTS = 4  # of a sample
_ATTRIBUTES = 32  # of a data set
_LEAST = 3  # pairs of samples, and a third of them, whose addresses differ alike
_MOST = 1_000_000  # samples of a data set


class SplitWindows:
    """The Subsets and their lines, and the kinds of data sets whose neighbouring samples overlap."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._overlap = mmap.mmap(-1, _SLOTS)
        self._fetches: Counter[type] = Counter()
        self._lines: dict[int, tuple[weakref.ref[Any], str | None]] = {}  # of Subsets

    def install(self) -> None:
        """Note where Subsets are made, and look at the samples of the first batches before they are collated."""
        make: Any = Subset.__init__
        draw: Any = fetch._MapDatasetFetcher.fetch

        @functools.wraps(make)
        def made(this: Any, *args: Any, **kwargs: Any) -> None:
            make(this, *args, **kwargs)
            with contextlib.suppress(Exception):
                self._lines[id(this)] = weakref.ref(this), users_function(sys._getframe(1))

        @functools.wraps(draw)
        def watched(this: Any, index: Any) -> Any:
            if not self._looks(this):
                return draw(this, index)
            collate = this.collate_fn

            def noting(samples: Any) -> Any:
                with contextlib.suppress(Exception):  # samples may be anything
                    self._note(this.dataset, index, samples)
                return collate(samples)

            this.collate_fn = noting
            try:
                return draw(this, index)
            finally:
                this.collate_fn = collate

        Subset.__init__ = made  # type: ignore[method-assign, assignment]
        fetch._MapDatasetFetcher.fetch = watched  # type: ignore[method-assign]

    def facts(self) -> list[SplitWindowFacts]:
        """The first data set that is split like that."""
        parts: dict[int, list[tuple[Any, Any]]] = {}
        for loader in self._places.alive(DataLoader):
            with contextlib.suppress(Exception):
                base, indices = _part(loader)
                if indices is not None and (self._overlap[_slot(base)] or _holds_windows(base)):
                    parts.setdefault(id(base), []).append((loader, indices))
        for loaders in parts.values():
            with contextlib.suppress(Exception):
                found = self._split(loaders)
                if found is not None:
                    return [found]
        return []

    def _split(self, loaders: Sequence[tuple[Any, Any]]) -> SplitWindowFacts | None:
        draws = self._places.draws
        training, trained = max(loaders, key=lambda part: draws[id(part[0]._index_sampler)])
        trained = torch.unique(torch.as_tensor(trained[:_MOST]))
        for loader, indices in loaders:
            held_out = torch.unique(torch.as_tensor(indices[:_MOST]))
            if loader is training or not len(held_out) or bool(torch.isin(held_out, trained).any()):
                continue
            if not _is_at_random(held_out, len(trained)):
                continue
            beside = torch.isin(held_out - 1, trained) | torch.isin(held_out + 1, trained)
            base, _ = _part(training)
            return SplitWindowFacts(
                where=self._line(training) or self._line(loader),
                dataset=type(base).__name__,
                training=len(trained),
                held_out=len(held_out),
                beside=int(beside.sum()),
            )
        return None

    def _line(self, loader: Any) -> str | None:
        """Where its data set was split; of a sampler where the loader was created."""
        ref, line = self._lines.get(id(loader.dataset), (None, None))
        return line if ref is not None and ref() is loader.dataset else self._places.line(loader)

    def _looks(self, fetcher: Any) -> bool:
        with contextlib.suppress(Exception):
            base = _base(fetcher.dataset)
            self._fetches[type(base)] += 1
            if not fetcher.auto_collation or self._overlap[_slot(base)]:
                return False
            return self._fetches[type(base)] <= _FETCHES
        return False

    def _note(self, dataset: Any, index: Any, samples: Any) -> None:
        if not isinstance(samples, (list, tuple, torch.Tensor)):
            return
        places = list(index)[:_SAMPLES]
        while isinstance(dataset, Subset):
            places = [dataset.indices[at] for at in places]
            dataset = dataset.dataset
        batch = sorted((int(at), list(_parts(sample))) for at, sample in zip(places, samples, strict=False))
        if any(_overlap([(at, parts[part]) for at, parts in batch if part < len(parts)]) for part in range(_PARTS)):
            self._overlap[_slot(dataset)] = 1


def _is_at_random(held_out: torch.Tensor, trained: int) -> bool:
    """Whether single samples were drawn: some of them without a neighbour, at least half of those expected.

    Parts of a series and recordings that are held out whole have few of them or none.
    """
    alone = ~(torch.isin(held_out - 1, held_out) | torch.isin(held_out + 1, held_out))
    return int(alone.sum()) >= 0.5 * (trained / (trained + len(held_out))) ** 2 * len(held_out)


def _slot(dataset: Any) -> int:
    kind = type(dataset)
    return zlib.crc32(f"{kind.__module__}.{kind.__qualname__}".encode()) % _SLOTS


def _base(dataset: Any) -> Any:
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return dataset


def _part(loader: Any) -> tuple[Any, Any]:
    """The data set, and which of its samples the loader draws; None for all of them."""
    dataset, indices = loader.dataset, None
    if isinstance(loader.sampler, SubsetRandomSampler):
        indices = loader.sampler.indices
    while isinstance(dataset, Subset):
        own = dataset.indices
        indices = own if indices is None else [own[at] for at in indices]
        dataset = dataset.dataset
    return dataset, indices


@dataclass(frozen=True, order=True)
class _Memory:
    """Where a tensor or an array lies: lengths and strides in bytes, the last dimension that of an element."""

    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _holds_windows(dataset: Any) -> bool:
    """Whether a tensor or an array of the data set has more elements than memory, and no dimension that repeats one."""
    for value in list(vars(dataset).values())[:_ATTRIBUTES]:
        for memory in () if isinstance(value, (list, tuple, Mapping)) else _parts(value):
            extent = 1 + sum((length - 1) * stride for length, stride in zip(memory.shape, memory.strides, strict=True))
            if min(memory.shape, default=0) and min(memory.strides) > 0 and prod(memory.shape) > extent:
                return True
    return False


def _parts(sample: Any) -> Iterator[_Memory]:
    """The tensors and arrays of a sample, in order."""
    if isinstance(sample, torch.Tensor):
        size = sample.element_size()
        strides = (size * stride for stride in sample.stride())
        yield _Memory(sample.data_ptr(), (*sample.shape, size), (*strides, 1))
    elif type(sample).__module__ == "numpy" and type(sample).__name__ == "ndarray":
        yield _Memory(sample.__array_interface__["data"][0], (*sample.shape, sample.itemsize), (*sample.strides, 1))
    elif isinstance(sample, (list, tuple, Mapping)):
        for part in sample.values() if isinstance(sample, Mapping) else sample:
            yield from _parts(part)


def _overlap(samples: Sequence[tuple[int, _Memory]]) -> bool:
    """Whether two of some samples that are all alive overlap, or their neighbours by index would."""
    placed = sorted(memory for _, memory in samples)
    for memory, later in pairwise(placed):
        alike = (memory.shape, memory.strides) == (later.shape, later.strides)
        if alike and _overlaps_itself(later.start - memory.start, memory.shape, memory.strides):
            return True
    steps = Counter(
        ((later.start - memory.start) // (other - at), memory.shape, memory.strides)
        for (at, memory), (other, later) in pairwise(samples)
        if at < other and (later.start - memory.start) % (other - at) == 0
        if (memory.shape, memory.strides) == (later.shape, later.strides)
    )
    if not steps:
        return False
    (step, shape, strides), count = steps.most_common(1)[0]
    return count >= max(_LEAST, len(samples) // 3) and _overlaps_itself(step, shape, strides)


def _overlaps_itself(moved: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether an array shares bytes with itself, moved by some bytes; not where it is not moved, as what all share."""
    dimensions = sorted(zip(strides, shape, strict=True), reverse=True)
    return moved != 0 and _reaches(moved, [each for each in dimensions if each[0] > 0 and each[1] > 1])


def _reaches(moved: int, dimensions: Sequence[tuple[int, int]]) -> bool:
    """Whether the places of two elements are so far apart: the longest strides first, each longer than those inside."""
    if not moved:
        return True
    if not dimensions:
        return False
    (stride, length), *inner = dimensions
    return any(abs(times) < length and _reaches(moved - times * stride, inner) for times in _nearest(moved, stride))


def _nearest(moved: int, stride: int) -> tuple[int, int]:
    return moved // stride, moved // stride + 1

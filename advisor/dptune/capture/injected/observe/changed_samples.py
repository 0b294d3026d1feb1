"""Compares samples that a data set keeps before and after they are drawn.

Around the first batches of a process, for a few samples of each: rows of tensors and arrays with one row for each
sample, and items of lists with one item for each. A row counts as changed if the batch has its new values and they are
correlated with the old ones: a cache that is filled has none before. Forked workers write into memory that they share
with the training process.
"""

from __future__ import annotations

import contextlib
import functools
import json
import mmap
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import Subset, get_worker_info
from torch.utils.data._utils import fetch

from dptune.capture.injected.observe.batch_preparation import named, reader
from dptune.runfile.changed_samples import ChangedSampleFacts

_DATASETS = 16  # rows of the shared memory
_ROW = 512  # bytes
_FETCHES = 4  # of a process and a kind of data set
_SAMPLES = 8  # of a batch
_ATTRIBUTES = 32  # of a data set
_LEAST, _MOST = 8, 1_000_000  # values of a row that is compared
_CORRELATED = 0.5  # noise as large as the sample leaves 0.7

_Rows = dict[str, dict[int, torch.Tensor]]  # by attribute: copies of rows, by their places in the batch


class ChangedSamples:
    """The first finding of each kind of data set."""

    def __init__(self) -> None:
        self._found = mmap.mmap(-1, _DATASETS * _ROW)
        self._fetches: Counter[type] = Counter()

    def install(self) -> None:
        """Look at samples before and after the first batches that a process prepares."""
        draw: Any = fetch._MapDatasetFetcher.fetch

        @functools.wraps(draw)
        def watched(this: Any, index: Any) -> Any:
            before = self._look(this.dataset, index)
            batch = draw(this, index)
            if before:
                self._compare(this.dataset, index, before, batch)
            return batch

        fetch._MapDatasetFetcher.fetch = watched  # type: ignore[method-assign]

    def facts(self) -> list[ChangedSampleFacts]:
        """Of each kind of data set that changes its samples."""
        rows = (self._found[at * _ROW : (at + 1) * _ROW].rstrip(b"\0") for at in range(_DATASETS))
        return [ChangedSampleFacts(**json.loads(row)) for row in rows if row]

    def _look(self, dataset: Any, index: Any) -> _Rows:
        with contextlib.suppress(Exception):  # a data set may hold anything
            self._fetches[type(dataset)] += 1
            if self._fetches[type(dataset)] <= _FETCHES:
                return {name: {at: row.clone() for at, row in rows.items()} for name, rows in _rows(dataset, index)}
        return {}

    def _compare(self, dataset: Any, index: Any, before: _Rows, batch: Any) -> None:
        with contextlib.suppress(Exception):
            given = list(_tensors(batch))
            for name, rows in _rows(dataset, index):
                changed = [
                    _changes(before[name][at], row) and any(_has(tensor, at, row, len(index)) for tensor in given)
                    for at, row in rows.items()
                    if at in before.get(name, {})
                ]
                if changed and 2 * sum(changed) > len(changed):
                    facts = {
                        "held_by": name[:120],
                        "read_by": (named(reader(dataset)) or "")[:200],
                        "rows": len(changed),
                        "changed": sum(changed),
                        "in_worker": get_worker_info() is not None,
                    }
                    self._write(name, json.dumps(facts).encode())

    def _write(self, name: str, text: bytes) -> None:
        at = zlib.crc32(name.encode()) % _DATASETS * _ROW
        if len(text) < _ROW and not self._found[at]:
            self._found[at : at + len(text)] = text


def _rows(dataset: Any, index: Any) -> Iterator[tuple[str, dict[int, torch.Tensor]]]:
    """By attribute, views of the rows that are to be drawn."""
    places = list(enumerate(index))[:_SAMPLES]
    while isinstance(dataset, Subset):
        places = [(at, dataset.indices[each]) for at, each in places]
        dataset = dataset.dataset
    count = len(dataset)
    for attribute, value in list((getattr(dataset, "__dict__", None) or {}).items())[:_ATTRIBUTES]:
        if type(value) not in (list, tuple) and not _is_array(value):
            continue
        if len(value) != count:
            continue
        rows = {at: row for at, each in places if (row := _row(value[each])) is not None}
        if rows:
            yield f"{type(dataset).__name__}.{attribute}", rows


def _row(value: Any) -> torch.Tensor | None:
    """A view of a sample; of a pair of them the first. None where it is no plain tensor or array of some values."""
    if isinstance(value, (list, tuple)) and value:
        value = value[0]
    if not _is_array(value):
        return None
    tensor = value.detach() if isinstance(value, torch.Tensor) else torch.from_numpy(value)
    return tensor if _LEAST <= tensor.numel() <= _MOST and tensor.device.type == "cpu" else None


def _is_array(value: Any) -> bool:
    if type(value) is torch.Tensor:
        return value.dim() > 0 and value.layout is torch.strided
    kind = type(value)
    return kind.__module__ == "numpy" and kind.__name__ == "ndarray" and value.ndim > 0 and value.flags.writeable


def _changes(before: torch.Tensor, after: torch.Tensor) -> bool:
    """Whether a row has other values than before, which are correlated with those: it was not empty."""
    if before.shape != after.shape or torch.equal(before, after):
        return False
    both = torch.stack([before.flatten().double(), after.flatten().double()])
    return bool(torch.isfinite(both).all()) and float(torch.corrcoef(both)[0, 1]) >= _CORRELATED


def _has(batch: torch.Tensor, at: int, row: torch.Tensor, samples: int) -> bool:
    """Whether a tensor of the batch has the row for this sample, or is it."""
    if batch.dtype == row.dtype and len(batch) == samples and batch[at].shape == row.shape:
        return torch.equal(batch[at], row)
    return batch.shape == row.shape and torch.equal(batch, row)


def _tensors(batch: Any) -> Iterator[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        if batch.dim() and batch.device.type == "cpu":
            yield batch.detach()
    elif isinstance(batch, Mapping):
        for part in batch.values():
            yield from _tensors(part)
    elif isinstance(batch, (list, tuple)):
        for part in batch:
            yield from _tensors(part)

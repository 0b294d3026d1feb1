"""How much of the batches of a loader is padding that no sample of the batch needs.

Looked at in the first batches of each loader, on tensors of integers of two dimensions: token ids, or a mask of them.
Targets for each position, counts and quantized images can look the same, so only what the model reads counts: ids that
an embedding gets in warm-up steps, or features of which a mask marks the padding and that a layer gets.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from dptune.capture.injected.observe.module_calls import ModuleCalls
from dptune.capture.injected.observe.module_paths import all_modules
from dptune.capture.injected.observe.padded_rows import PaddedRows, padded_rows, tensors
from dptune.capture.injected.observe.passes import is_captured
from dptune.runfile.padding import PaddingFacts

_BATCHES = 32  # that are looked at, of each loader
_LEAST_ALIKE = 0.5  # of the ids that are not padding: a model may mask some of them
_MOST_CUT = 2  # columns that a model may leave out: the last token, which it predicts
_LATEST = 4  # batches that are kept while calls are watched: a loader may be ahead of the model
_MOST_KEPT = 32  # inputs of layers that are compared later, because they are on a device
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.RNNBase, nn.LayerNorm, nn.BatchNorm1d)

_Place = tuple[int, str]  # a loader's sampler, by identity, and the place of a tensor in its batches


class Padding:
    """Sums by loader: by the identity of the sampler that its batches are drawn with."""

    def __init__(self) -> None:
        self._found: dict[_Place, PaddingFacts] = {}
        self._fillers: dict[_Place, int] = {}
        self._looked: dict[int, int] = {}
        self._latest: defaultdict[int, deque[dict[str, PaddedRows]]] = defaultdict(lambda: deque(maxlen=_LATEST))
        self._watching = False
        self._read: set[_Place] = set()  # that the model was seen to read
        self._kept: list[tuple[_Place, PaddedRows, torch.Tensor]] = []

    def begin(self, calls: ModuleCalls) -> None:
        """Watch what the layers of the model read."""
        self._watching = True
        with contextlib.suppress(Exception):  # modules may be anything
            for module in all_modules():
                if isinstance(module, (nn.Embedding, nn.EmbeddingBag, *_LAYERS)):
                    calls.before(module, self._called)

    def end(self) -> None:
        """Stop, and compare what is on devices."""
        self._watching = False
        self._latest.clear()
        self._compare()

    def note(self, sampler: int, batch: Any) -> None:
        """Look at a batch."""
        looked = self._looked.get(sampler, 0)
        if looked >= _BATCHES and not self._watching:
            return
        self._looked[sampler] = looked + 1
        with contextlib.suppress(Exception):  # a batch may be anything
            parts = dict(tensors(batch))
            padded: dict[str, PaddedRows] = {}
            for name, tensor in parts.items():
                found = padded_rows(tensor, list(parts.values()), self._fillers.get((sampler, name)))
                if found is not None:
                    padded[name] = found
            if self._watching:
                self._latest[sampler].append(padded)
            if looked < _BATCHES:
                for name, found in padded.items():
                    self._add((sampler, name), found)

    def facts(self, sampler: int) -> PaddingFacts | None:
        """What was seen of the loader with that sampler; None where the model reads no padding from its batches."""
        self._compare()
        return next(
            (found for place, found in self._found.items() if place[0] == sampler and place in self._read), None
        )

    def _add(self, place: _Place, padded: PaddedRows) -> None:
        if padded.shows_filler:
            self._fillers[place] = padded.filler
        columns = padded.columns
        found = self._found.setdefault(place, PaddingFacts())
        found.batches += 1
        found.columns += columns
        found.longest_columns += int(padded.lengths.max())
        found.filled_share += (float(padded.lengths.float().mean()) / columns - found.filled_share) / found.batches

    def _called(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        read = args[0] if args else next(iter(kwargs.values()), None)
        if type(read) is not torch.Tensor or is_captured() or not self._watching:
            return
        for sampler, batches in self._latest.items():
            for place, padded in ((name, rows) for batch in batches for name, rows in batch.items()):
                if (sampler, place) in self._read or not _may_be(read, padded.inputs):
                    continue
                if read.device.type == "cpu":
                    if _is_of(read, padded):
                        self._read.add((sampler, place))
                elif len(self._kept) < _MOST_KEPT:
                    self._kept.append(((sampler, place), padded, read.detach()))

    def _compare(self) -> None:
        kept, self._kept = self._kept, []
        for place, padded, read in kept:
            with contextlib.suppress(Exception):
                if place not in self._read and _is_of(read.cpu(), padded):
                    self._read.add(place)


def _may_be(read: torch.Tensor, inputs: Sequence[torch.Tensor]) -> bool:
    """Whether the sizes agree with one of these."""
    for tensor in inputs:
        if read.is_floating_point() != tensor.is_floating_point():
            continue
        if read.is_floating_point():
            if read.numel() == tensor.numel():
                return True
        elif 0 <= tensor.numel() - read.numel() <= _MOST_CUT * tensor.shape[0]:
            return True
    return False


def _is_of(read: torch.Tensor, padded: PaddedRows) -> bool:
    """Whether a layer's input has the values of one of the padded tensors."""
    return any(
        _are_features(read, tensor) if tensor.is_floating_point() else _are_ids(read, tensor, padded)
        for tensor in padded.inputs
        if tensor.is_floating_point() == read.is_floating_point()
    )


def _are_ids(read: torch.Tensor, ids: torch.Tensor, padded: PaddedRows) -> bool:
    count, columns = ids.shape
    if read.dim() == 2 and read.shape[0] != count and read.shape[1] == count:
        read = read.T
    read = read.reshape(count, -1) if read.dim() > 2 or read.dim() == 1 else read
    if read.shape[0] != count or not 0 <= columns - read.shape[1] <= _MOST_CUT:
        return False
    width = read.shape[1]
    for first in range(columns - width + 1):
        filled = ~padded.padding[:, first : first + width]
        if float((read == ids[:, first : first + width])[filled].float().mean()) >= _LEAST_ALIKE:
            return True
    return False


def _are_features(read: torch.Tensor, features: torch.Tensor) -> bool:
    """The same values in any order: a model may swap dimensions."""
    if read.numel() != features.numel():
        return False
    read, features = read.double(), features.double()
    return all(
        torch.allclose(one.cpu(), other, rtol=1e-4)
        for one, other in ((read.sum(), features.sum()), (read.abs().sum(), features.abs().sum()))
    )

"""Finds training samples that come in the order of a data set that is sorted by label.

The targets of classification losses are read from the graphs of a few backward passes. They are looked for among the
labels that the data set holds, in the order in which its loader draws. Nothing of the script is called.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, SequentialSampler, Subset

from dptune.capture.injected.observe.loss_graph import LOSSES, consumers
from dptune.capture.injected.observe.loss_masks import readable
from dptune.capture.injected.observe.passes import is_captured, is_in_pass
from dptune.capture.injected.observe.places import Places
from dptune.runfile.sorted_labels import SortedLabelFacts

_PASSES = 8  # that are read
_NODES = 256  # of a graph, the nearest to the loss
_BINARY = ("BinaryCrossEntropyBackward", "BinaryCrossEntropyWithLogitsBackward")
_MOST_TARGETS = 4096  # of a pass: one for each sample
_MOST = 2_000_000  # samples of a data set
_ATTRIBUTES = 32  # of a data set
_STARTS = 8  # places at which targets may begin
_LEAST_EXPECTED = 20  # changes of label, at random: fewer say little
_SORTED = 0.1  # of these, at most: copies of a sample that follow each other leave a half or a third


class SortedLabels:
    """The targets of the first backward passes; data sets are looked at when the recording ends."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._watching = False
        self._passes = 0
        self._targets: list[torch.Tensor] = []

    def begin(self) -> None:
        """Read the targets of backward passes from now on, except in code that torch.compile hides."""
        self._watching = not self._places.compiled

    def end(self) -> None:
        """Read no more."""
        self._watching = False

    def before_pass(self, roots: Any) -> None:
        """A backward pass starts from these tensors."""
        if not self._watching or self._passes >= _PASSES or is_captured() or is_in_pass():
            return
        self._passes += 1
        with contextlib.suppress(Exception), torch.no_grad():  # a graph may be anything
            tensors = (roots,) if isinstance(roots, torch.Tensor) else tuple(roots)
            nodes = consumers((tensor.grad_fn for tensor in tensors), _NODES)
            target = next(filter(_is_of_samples, map(_target, nodes)), None)
            if target is not None:
                self._targets.append(target.detach().reshape(-1).clone())

    def facts(self) -> SortedLabelFacts | None:
        """Of the loader that most batches were drawn from; None where it shuffles, or labels are in no order."""
        loaders = self._places.alive(DataLoader)
        draws = self._places.draws
        trained = max(loaders, key=lambda loader: draws[id(loader._index_sampler)], default=None)
        with contextlib.suppress(Exception):  # a data set may be anything
            if trained is not None and self._targets:
                return self._of_loader(trained)
        return None

    def _of_loader(self, loader: Any) -> SortedLabelFacts | None:
        order, base = _order(loader)
        if order is None:
            return None
        targets = list(map(_whole_numbers, self._targets))
        for name, labels in _labels(base):
            drawn = labels[order]
            if any(target is None or not _contains(drawn, target) for target in targets):
                continue
            found = _sorted(drawn)
            if found is not None and found.run_length >= loader.batch_size:
                found.where, found.dataset = self._places.line(loader), type(base).__name__
                found.labels, found.sampler = name, type(loader.sampler).__name__
                found.batch_size, found.passes = loader.batch_size, len(targets)
                return found
        return None


def _target(node: Any) -> Any:
    """What a loss compares its input with; None of another function."""
    if node.name().startswith((*LOSSES, *_BINARY)) and readable(node, "target"):
        return node._saved_target
    return None


def _is_of_samples(target: Any) -> bool:
    """Whether there is one for each sample, of several."""
    if type(target) is not torch.Tensor or not 1 < target.numel() <= _MOST_TARGETS:
        return False
    return target.dim() == 1 or (target.dim() == 2 and target.shape[1] == 1)


def _order(loader: Any) -> tuple[torch.Tensor | None, Any]:
    """The indices that the loader draws in an epoch, and the data set that they are of; None where it shuffles."""
    sampler, dataset = loader.sampler, loader.dataset
    plain = loader.batch_size is not None and type(loader.batch_sampler) is BatchSampler
    if not plain or len(dataset) > _MOST:
        return None, dataset
    order = torch.arange(len(dataset))
    if isinstance(sampler, DistributedSampler) and not sampler.shuffle:
        order = order[sampler.rank :: sampler.num_replicas]
    elif type(sampler) is not SequentialSampler:
        return None, dataset
    while isinstance(dataset, Subset):
        order, dataset = torch.as_tensor(dataset.indices)[order], dataset.dataset
    return order, dataset


def _labels(dataset: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The attributes that have a whole number for each sample."""
    for name, value in list(vars(dataset).items())[:_ATTRIBUTES]:
        parts = value if name == "tensors" and isinstance(value, tuple) else (value,)
        for number, part in enumerate(parts):
            labels = _of_samples(part, len(dataset))
            if labels is not None:
                yield f"{name}[{number}]" if len(parts) > 1 else name, labels


def _of_samples(value: Any, count: int) -> torch.Tensor | None:
    is_array = isinstance(value, torch.Tensor) or (type(value).__module__, type(value).__name__) == ("numpy", "ndarray")
    if not is_array and not (isinstance(value, (list, tuple)) and len(value) == count and type(value[0]) is int):
        return None
    numbers = torch.as_tensor(value)
    return _whole_numbers(numbers) if numbers.numel() == count == len(numbers) else None


def _whole_numbers(values: torch.Tensor) -> torch.Tensor | None:
    """On the CPU, as int64; None if there are others."""
    values = values.detach().reshape(-1).cpu()
    whole = values.long()
    return whole if not values.is_floating_point() or bool((whole == values).all()) else None


def _contains(labels: torch.Tensor, target: torch.Tensor) -> bool:
    """Whether the targets are the labels of some samples that follow each other."""
    length = len(target)
    starts = (labels[: max(0, len(labels) - length + 1)] == target[0]).nonzero().reshape(-1)
    for at in [*_changes(target).tolist(), length - 1]:
        starts = starts[labels[starts + at] == target[at]]
    return any(torch.equal(labels[start : start + length], target) for start in starts[:_STARTS].tolist())


def _changes(labels: torch.Tensor) -> torch.Tensor:
    """Where a label differs from the one before."""
    return (labels[1:] != labels[:-1]).nonzero().reshape(-1) + 1


def _sorted(labels: torch.Tensor) -> SortedLabelFacts | None:
    """None where labels change as often as at random, or nearly."""
    count, changes = len(labels), len(_changes(labels))
    counts = torch.unique(labels, return_counts=True)[1].double()
    expected = (count - 1) * float(1 - (counts / count).square().sum())
    if expected < _LEAST_EXPECTED or changes > _SORTED * expected:
        return None
    return SortedLabelFacts(samples=count, classes=len(counts), changes=changes, expected_changes=expected)

"""Data sets that are sorted by label, and loaders that draw them in that order: real loaders and losses."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, Subset, TensorDataset, random_split

from dptune.capture.injected.observe.sorted_labels import SortedLabels

SORTED = torch.arange(4).repeat_interleave(50)
SHUFFLED = SORTED[torch.randperm(200, generator=torch.Generator().manual_seed(0))]


class Shells(Dataset):
    def __init__(self, kinds, shown=None):
        self.files, self.kinds = [f"{number}.png" for number in range(len(kinds))], kinds
        self.shown = kinds if shown is None else shown

    def __len__(self):
        return len(self.kinds)

    def __getitem__(self, index):
        return torch.randn(6), int(self.shown[index])


def of_classes(model, rows, target):
    return nn.functional.cross_entropy(model(rows), target)


def binary(model, rows, target):
    return nn.functional.binary_cross_entropy_with_logits(model(rows)[:, :1], (target > 1).float()[:, None])


class OfLoader:
    """The places of a script with one loader, from which so many batches were drawn."""

    compiled = ()

    def __init__(self, loader, batches):
        self.loader, self.draws = loader, Counter({id(loader._index_sampler): batches})

    def alive(self, kind):
        return [self.loader]

    def line(self, thing):
        return "train.py:9"


def found(loader, loss=of_classes, batches=4, skipped=0):
    """What is found in an epoch of this loader, of which so many batches train a model."""
    watched, model = SortedLabels(OfLoader(loader, batches)), nn.Linear(6, 4)
    watched.begin()
    for number, (rows, target) in enumerate(loader):
        if skipped <= number < skipped + batches:
            value = loss(model, rows, target)
            watched.before_pass(value)
            value.backward()
    watched.end()
    watched.before_pass(nn.functional.cross_entropy(torch.randn(8, 4, requires_grad=True), torch.arange(8) % 4))
    return watched.facts()


@pytest.mark.parametrize("kinds", [SORTED, SORTED.numpy(), SORTED.tolist(), SORTED.double(), tuple(SORTED.tolist())])
def test_labels_of_any_kind(kinds):
    """200 samples of 4 classes: 3 changes, where 199 * 3 / 4 are expected."""
    facts = found(DataLoader(Shells(kinds), batch_size=8))
    assert (facts.dataset, facts.labels, facts.sampler) == ("Shells", "kinds", "SequentialSampler")
    assert facts.where == "train.py:9"
    assert (facts.samples, facts.classes, facts.changes, facts.batch_size, facts.passes) == (200, 4, 3, 8, 4)
    assert facts.expected_changes == pytest.approx(199 * 3 / 4)
    assert facts.run_length == 50


def test_tensors_and_later_batches():
    facts = found(DataLoader(TensorDataset(torch.randn(200, 6), SORTED), batch_size=8), skipped=5)
    assert (facts.labels, facts.passes) == ("tensors[1]", 4)  # the sixth batch begins with the last of a class


def test_a_binary_loss_of_labels_that_are_whole_numbers():
    data = TensorDataset(torch.randn(200, 6), (SORTED > 1).float())
    facts = found(DataLoader(data, batch_size=8), lambda model, rows, target: binary(model, rows, 2 * target))
    assert (facts.classes, facts.changes) == (2, 1)


def test_the_part_of_a_rank_and_a_subset():
    alike = DistributedSampler(Shells(SORTED), num_replicas=2, rank=1, shuffle=False)
    facts = found(DataLoader(Shells(SORTED), batch_size=8, sampler=alike))
    assert (facts.samples, facts.changes, facts.sampler) == (100, 3, "DistributedSampler")
    facts = found(DataLoader(Subset(Shells(SORTED), range(100)), batch_size=8))
    assert (facts.dataset, facts.samples, facts.classes) == ("Shells", 100, 2)


@pytest.mark.parametrize(
    "loader",
    [
        lambda: DataLoader(Shells(SORTED), batch_size=8, shuffle=True),
        lambda: DataLoader(Shells(SHUFFLED), batch_size=8),
        lambda: DataLoader(Shells(SORTED, shown=SHUFFLED), batch_size=8),  # what is sorted is no target
        lambda: DataLoader(Shells(SORTED), batch_size=64),  # of several classes
        lambda: DataLoader(Shells(SORTED[::10]), batch_size=2),  # too few
        lambda: DataLoader(Shells(SHUFFLED.repeat_interleave(3)), batch_size=3),  # three crops of each
        lambda: DataLoader(Shells(SORTED), batch_sampler=BatchSampler(range(200), 8, drop_last=False)),
        lambda: DataLoader(random_split(Shells(SORTED), [0.9, 0.1])[0], batch_size=8),
        lambda: DataLoader(
            Shells(SORTED), batch_size=8, sampler=DistributedSampler(Shells(SORTED), num_replicas=2, rank=0)
        ),
        lambda: DataLoader([(torch.randn(6), int(kind)) for kind in SORTED], batch_size=8),  # labels are not held
        lambda: DataLoader(Shells(torch.zeros(200, dtype=torch.long)), batch_size=8),  # a single class
    ],
)
def test_quiet(loader):
    assert found(loader()) is None


def test_losses_that_show_no_labels():
    loader = DataLoader(Shells(SORTED), batch_size=8)
    assert found(loader, lambda model, rows, target: model(rows).square().mean()) is None
    assert found(loader, batches=0) is None

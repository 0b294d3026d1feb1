"""Samples that drawing them changes: what is compared, and what is no such change."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset

from dptune.capture.injected.observe.changed_samples import ChangedSamples

COUNT, LENGTH = 12, 32


class Kept(Dataset):
    def __init__(self, kept, change):
        self.kept, self.change = kept, change
        self.drawn = np.ones((len(kept), 9))

    def __len__(self):
        return len(self.kept)

    def __getitem__(self, index):
        self.drawn[index] *= 1.5  # what the batch does not have
        return self.change(self, index)


def adds(data, index):
    sample = data.kept[index]
    sample += 0.5
    return sample


def adds_to_a_pair(data, index):
    sample, kind = data.kept[index]
    sample *= 1.5
    return sample, kind


def copies(data, index):
    return data.kept[index] + 0.5


def fills(data, index):
    data.kept[index] = torch.linspace(-1, 1, LENGTH).roll(index)
    return data.kept[index]


def rows():
    return torch.randn(COUNT, LENGTH, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def found(monkeypatch):
    """What is found while a data set, or a part of it, is drawn from once."""
    fetcher = torch.utils.data._utils.fetch._MapDatasetFetcher
    monkeypatch.setattr(fetcher, "fetch", fetcher.fetch)  # as it was, after the test

    def draw(data, workers=0):
        changed = ChangedSamples()
        changed.install()
        list(DataLoader(data, 4, num_workers=workers))
        return [(facts.held_by, facts.rows, facts.changed, facts.in_worker) for facts in changed.facts()]

    return draw


@pytest.mark.parametrize(
    ("kept", "change"),
    [
        (rows(), adds),
        (rows().numpy(), adds),
        (list(rows().clone()), adds),
        ([(row, 1) for row in rows().clone()], adds_to_a_pair),
    ],
)
def test_tensors_arrays_and_lists_that_are_changed_in_place(found, kept, change):
    assert found(Kept(kept, change)) == [("Kept.kept", 4, 4, False)]


def test_a_part_of_a_data_set(found):
    assert found(Subset(Kept(rows(), adds), [7, 3, 5, 0, 1])) == [("Kept.kept", 4, 4, False)]


def test_the_copy_of_a_worker(found):
    assert found(Kept(rows(), adds), workers=1) == [("Kept.kept", 4, 4, True)]


@pytest.mark.parametrize(
    ("kept", "change"),
    [
        (rows(), copies),
        (torch.zeros(COUNT, LENGTH), fills),
        (torch.full((COUNT, LENGTH), float("nan")), fills),
        (rows(), fills),  # memory that was not initialized
    ],
)
def test_copies_and_caches_that_are_filled(found, kept, change):
    assert found(Kept(kept, change)) == []


def test_an_array_that_cannot_be_written_to(found):
    kept = rows().numpy()
    kept.flags.writeable = False
    assert found(Kept(kept, lambda data, index: data.kept[index].copy())) == []


def test_samples_are_drawn_as_without_it(found):
    watched, plain = Kept(rows(), adds), Kept(rows(), adds)
    found(watched)
    for index in range(COUNT):
        plain[index]
    assert torch.equal(watched.kept, plain.kept)

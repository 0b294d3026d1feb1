"""The digest of a Subset's indices, by which ranks compare how they split a data set."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import Subset, TensorDataset, random_split

from dptune.capture.injected.observe.objects import subset_digest

DATA = TensorDataset(torch.arange(100))


def split(seed):
    return random_split(DATA, [90, 10], generator=torch.Generator().manual_seed(seed))


def test_equal_for_equal_seeds_only():
    assert subset_digest(split(0)[0]) == subset_digest(split(0)[0])
    assert len({subset_digest(part) for seed in (0, 1) for part in split(seed)}) == 4


@pytest.mark.parametrize("indices", [[3, 1, 2], range(1, 4), torch.tensor([3, 1])])
def test_indices_of_any_kind(indices):
    assert subset_digest(Subset(DATA, indices)) == subset_digest(Subset(DATA, [int(at) for at in indices]))


def test_none_without_readable_indices():
    assert subset_digest(DATA) is None
    assert subset_digest(Subset(DATA, ["a"])) is None

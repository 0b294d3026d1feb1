"""Data sets that take a list of indices as well as one."""

import pytest

torch = pytest.importorskip("torch", reason="data sets are torch's")
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, Dataset, Subset, TensorDataset  # noqa: E402

from dptune.capture.injected.observe.indexed_samples import takes_lists  # noqa: E402

X, Y = torch.arange(24.0).view(8, 3), torch.arange(8)


class Held(Dataset):
    def __init__(self):
        self.x, self.y, self.list, self.array = X, Y, X.tolist(), X.numpy()

    def __len__(self):
        return 8


class Pair(Held):
    def __getitem__(self, i):
        """A row and its label."""
        return self.x[i], self.y[i]


class Row(Held):
    def __getitem__(self, index):
        return self.x[index]


class Named(Held):
    def __getitem__(self, i):
        return {"x": self.x[i], "y": self.y[i]}


class Changed(Held):
    def __getitem__(self, i):
        return self.x[i] / 2, self.y[i]


class Chosen(Held):
    def __getitem__(self, i):
        j = 7 - i
        return self.x[j]


class OfList(Held):
    def __getitem__(self, i):
        return self.x[i], self.list[i]


class OfArray(Held):
    def __getitem__(self, i):
        return self.array[i]


class First(Held):
    def __getitem__(self, i):
        return self.x[0]


class Whole(Pair):
    def __getitems__(self, indices):
        return self.x[indices], self.y[indices]


SUBSETS = [Subset(Subset(TensorDataset(X, Y), range(6)), [4, 1]), Subset(Row(), [5, 2])]
TAKES = [Pair(), Row(), Named(), TensorDataset(X, Y), *SUBSETS]
OTHERS = [Changed(), Chosen(), OfList(), OfArray(), First(), Whole(), ConcatDataset([Row()]), Subset(Changed(), [1])]


def equal(first, second):
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(equal(first[key], second[key]) for key in first)
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    return len(first) == len(second) and all(map(equal, first, second))


@pytest.mark.parametrize("data", TAKES, ids=lambda data: type(data).__name__)
def test_what_only_indexes_tensors_gives_the_same_batches(data):
    assert takes_lists(data)
    by_sample = list(DataLoader(data, batch_size=2))
    at_once = list(DataLoader(data, batch_size=None, sampler=BatchSampler(range(len(data)), 2, drop_last=False)))
    assert len(by_sample) == len(at_once) > 0
    assert all(map(equal, by_sample, at_once))


@pytest.mark.parametrize("data", OTHERS, ids=lambda data: type(data).__name__)
def test_what_does_anything_else_does_not(data):
    assert not takes_lists(data)

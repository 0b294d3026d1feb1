"""Whether the code of an iterable data set divides its samples among workers."""

from __future__ import annotations

import functools

import pytest

torch_data = pytest.importorskip("torch.utils.data", reason="the data sets are torch's")
from torch.utils import data  # noqa: E402
from torch.utils.data import ChainDataset, DataLoader, IterableDataset, get_worker_info  # noqa: E402

from dptune.capture.injected.observe.sharding import sharded_by  # noqa: E402


def mine(lines):
    info = get_worker_info()
    return (line for at, line in enumerate(lines) if info is None or at % info.num_workers == info.id)


class Plain(IterableDataset):
    def __iter__(self):
        return iter(range(8))


class Asks(IterableDataset):
    def __iter__(self):
        info = data.get_worker_info()
        yield from range(0 if info is None else info.id, 8, 1 if info is None else info.num_workers)


class AsksInHelper(IterableDataset):
    def lines(self):
        return mine(range(8))

    def __iter__(self):
        yield from self.lines()


class Inherits(Asks):
    def __init__(self):
        self.width = 3


class Shuffled(IterableDataset):
    def __init__(self, source):
        self.source = source

    def __iter__(self):
        yield from self.source


class Library(IterableDataset):
    def __iter__(self):
        return iter(range(8))


Library.__module__ = "webdataset.compat"


def divide(worker, stride):
    get_worker_info().dataset.start = worker * stride


def seed(worker):
    return worker


@pytest.mark.parametrize(
    ("made", "init", "found"),
    [
        (Plain, None, None),
        (lambda: Shuffled(Plain()), None, None),
        (Plain, seed, None),
        (Asks, None, "Asks"),
        (AsksInHelper, None, "AsksInHelper"),
        (Inherits, None, "Inherits"),
        (lambda: Shuffled(Shuffled(Asks())), None, "Asks"),
        (lambda: ChainDataset([Plain(), Asks()]), None, "Asks"),
        (Plain, functools.partial(divide, stride=2), "worker_init_fn"),
        (Library, None, "webdataset.Library"),
        (lambda: Shuffled(Library()), None, "webdataset.Library"),
    ],
)
def test_what_divides_the_samples(made, init, found):
    assert sharded_by(DataLoader(made(), worker_init_fn=init)) == found


def test_a_data_set_that_holds_itself_ends():
    own = Shuffled(None)
    own.source = own
    assert sharded_by(DataLoader(own)) is None

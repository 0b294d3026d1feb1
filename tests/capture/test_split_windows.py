"""Windows of a series that are split into training and held-out samples: real data sets and loaders."""

from __future__ import annotations

import itertools
import operator
from collections import Counter

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, SubsetRandomSampler, random_split
from torch.utils.data._utils import fetch

from dptune.capture.injected.observe import split_windows
from dptune.capture.injected.observe.split_windows import SplitWindows


class Places:
    """The loaders of a script, and how many batches were drawn from each."""

    def __init__(self):
        self.loaders, self.draws = [], Counter()

    def alive(self, kind):
        return self.loaders

    def line(self, thing):
        return "train.py:9"


@pytest.fixture
def observed(monkeypatch):
    """The facts of two loaders: epochs of the first, an evaluation with the other."""
    monkeypatch.setattr(fetch._MapDatasetFetcher, "fetch", fetch._MapDatasetFetcher.fetch)
    monkeypatch.setattr(Subset, "__init__", Subset.__init__)
    places = Places()
    observer = SplitWindows(places)
    observer.install()

    def facts(loaders):
        places.loaders = loaders
        for loader in loaders:
            for batch in loader:
                assert len(batch)
                places.draws[id(loader._index_sampler)] += 1
        return observer.facts()

    return facts


class Windows(Dataset):
    """Windows of a series: with `stride` of the window's length they do not overlap."""

    def __init__(self, count=400, window=32, stride=8, cut=lambda series, start, end: series[start:end]):
        self.series = torch.randn(count * stride + window)
        self.count, self.window, self.stride, self.cut = count, window, stride, cut

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        start = i * self.stride
        return self.cut(self.series, start, start + self.window), i


class Unfolded(Dataset):
    """Windows of ten recordings."""

    def __init__(self, stride=8):
        self.windows = torch.randn(10, 8 * 40 + 24).unfold(1, 32, stride)

    def __len__(self):
        return self.windows.shape[0] * self.windows.shape[1]

    def __getitem__(self, i):
        return self.windows[divmod(i, self.windows.shape[1])].unsqueeze(0)


class Channels(Dataset):
    """Windows of a series with several channels, all times of a channel beside each other."""

    def __init__(self, stride=8):
        self.series, self.stride = torch.randn(3, 5000), stride

    def __len__(self):
        return 150

    def __getitem__(self, i):
        return self.series[:, i * self.stride : i * self.stride + 32]


def at_random(data, batch=16):
    train, held_out = random_split(data, [0.8, 0.2], torch.Generator().manual_seed(1))
    return [DataLoader(train, batch, shuffle=True), DataLoader(held_out, batch)]


def by_array(series, start, end):
    return torch.from_numpy(series.numpy()[start:end])


@pytest.mark.parametrize(
    "data",
    [
        Windows(),
        Windows(count=20_000),
        Windows(cut=by_array),
        Windows(cut=lambda series, start, end: series.numpy()[start:end]),
        Windows(cut=lambda series, start, end: {"past": series[start : end - 4], "ahead": series[end - 4 : end]}),
        Unfolded(),
        Channels(),
    ],
)
def test_overlapping_windows_that_are_split_at_random(observed, data):
    (facts,) = observed(at_random(data))
    assert facts.where.startswith("at_random (tests/capture/test_split_windows.py:")
    assert (facts.dataset, facts.training + facts.held_out) == (type(data).__name__, len(data))
    assert 0.8 < facts.share < 1


def test_samplers_of_random_parts(observed):
    data, order = Windows(), np.random.default_rng(0).permutation(400)
    samplers = [SubsetRandomSampler(order[:300]), SubsetRandomSampler(order[300:])]
    (facts,) = observed([DataLoader(data, 16, sampler=sampler) for sampler in samplers])
    assert (facts.where, facts.training, facts.held_out) == ("train.py:9", 300, 100)
    assert facts.share > 0.8


def test_a_split_by_time(observed):
    data = Windows()
    parts = [Subset(data, range(320)), Subset(data, range(320, 400))]
    assert observed([DataLoader(part, 16, shuffle=True) for part in parts]) == []


@pytest.mark.parametrize("windows", [2, 3, 10])
def test_recordings_that_are_held_out_whole(observed, windows):
    """The first window of a recording is beside the last one of another, which it does not overlap."""
    data, order = Windows(count=400), torch.randperm(400 // windows, generator=torch.Generator().manual_seed(1))
    held_out = set(order[: len(order) // 5].tolist())
    parts = [Subset(data, [i for i in range(400) if (i // windows in held_out) is held]) for held in (False, True)]
    assert observed([DataLoader(part, 16, shuffle=True) for part in parts]) == []


@pytest.mark.parametrize("share", [0.02, 0.5, 0.8])
def test_parts_of_other_sizes(observed, share):
    train, held_out = random_split(Windows(), [1 - share, share], torch.Generator().manual_seed(1))
    (facts,) = observed([DataLoader(train, 16, shuffle=True), DataLoader(held_out, 128)])
    assert facts.held_out == len(held_out)


@pytest.mark.parametrize(
    "data",
    [
        Windows(stride=32),
        Windows(cut=lambda series, start, end: series[start:end].clone()),
        Windows(cut=lambda series, start, end: series[:32]),
        Unfolded(stride=32),
        Channels(stride=32),
        torch.utils.data.TensorDataset(torch.randn(400, 32), torch.zeros(400)),
    ],
)
def test_samples_that_do_not_overlap(observed, data):
    assert observed(at_random(data)) == []


def test_the_training_data_evaluated(observed):
    data = Windows()
    train, _ = random_split(data, [0.8, 0.2])
    assert observed([DataLoader(train, 16, shuffle=True), DataLoader(train, 16), DataLoader(data, 16)]) == []


def test_workers(observed):
    train, held_out = random_split(Windows(), [0.8, 0.2], torch.Generator().manual_seed(1))
    loader = DataLoader(train, 16, shuffle=True, num_workers=1, multiprocessing_context="fork")
    (facts,) = observed([loader, DataLoader(held_out, 16)])
    assert facts.share > 0.8


@pytest.mark.parametrize("shape", [(5,), (2, 3), (3, 4, 2)])
@pytest.mark.parametrize("spread", [1, 3])
def test_whether_an_array_overlaps_itself(shape, spread):
    """Compared with all places of an array whose rows are `spread` times as far apart as in dense memory."""
    strides, place = [], 1
    for length in reversed(shape):
        strides.insert(0, place)
        place *= length * spread
    places = {sum(map(operator.mul, at, strides)) for at in itertools.product(*map(range, shape))}
    for moved in range(-place, place + 1):
        expected = moved != 0 and any(at + moved in places for at in places)
        assert split_windows._overlaps_itself(moved, shape, tuple(strides)) == expected

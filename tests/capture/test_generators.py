"""The states in which workers first draw from generators that a data set holds."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, get_worker_info

from dptune.capture.injected.observe.generators import Generators
from dptune.runfile.generators import equal_generators

from .conftest import SHORT

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # of a process with threads

SCRIPT = """
    import numpy as np
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Clips(Dataset):
        def __init__(self):
            self.rng = np.random.default_rng(5)

        def __len__(self):
            return 16

        def __getitem__(self, at):
            return torch.full((8,), self.rng.uniform())

    loader = DataLoader(Clips(), 4, num_workers=2)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(6):
        for batch in loader:
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.records
def test_a_recording_has_the_states_of_all_workers_and_the_line(profile):
    done = profile(SCRIPT, *SHORT, "--continue")
    assert done.status == 0, done.err
    (loader,) = done.facts().loaders
    (found,) = loader.generators
    assert (found.name, found.kind, found.where) == ("Clips.rng", "numpy.random.Generator", "train.py:8")
    (equal,) = equal_generators([loader.generators])
    assert (equal.workers, equal.ranks, equal.epochs >= 2) == (2, 1, True)


class Noise:
    """A transform."""

    def __init__(self, generator):
        self.draws = generator

    def __call__(self, value):
        if isinstance(self.draws, torch.Generator):
            return value + torch.rand((), generator=self.draws)
        return value + (self.draws.random() if hasattr(self.draws, "random") else self.draws.uniform())


class Samples(Dataset):
    def __init__(self, transform):
        self.transforms = [transform]

    def __len__(self):
        return 16

    def __getitem__(self, at):
        return self.transforms[0](torch.tensor(float(at)))


class ReseededBySample(Samples):
    def __getitem__(self, at):
        self.transforms[0].draws.seed(at) if hasattr(self.transforms[0].draws, "seed") else None
        return super().__getitem__(at)


class MadeInTheWorker(Samples):
    def __init__(self):
        super().__init__(Noise(np.random.default_rng(0)))
        self.made = False

    def __getitem__(self, at):
        if not self.made:
            self.made, self.transforms[0].draws = True, np.random.default_rng(get_worker_info().id)
        return super().__getitem__(at)


class MadeAlikeInTheWorker(MadeInTheWorker):
    def __getitem__(self, at):
        if not self.made:
            self.made, self.transforms[0].draws = True, np.random.default_rng(0)
        return super().__getitem__(at)


class Unused(Samples):
    def __getitem__(self, at):
        return torch.rand(()) + at


class Stream(IterableDataset):
    """Each worker shuffles alike, and takes its part."""

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __iter__(self):
        info = get_worker_info()
        yield from self.rng.permutation(16)[info.id :: info.num_workers]


class Collate:
    def __init__(self):
        self.rng = random.Random(3)

    def __call__(self, samples):
        return torch.tensor([self.rng.random() for _ in samples])


def seed_worker(worker):
    info = get_worker_info()
    info.dataset.transforms[0].draws = np.random.default_rng(info.seed)


@pytest.fixture
def observer(monkeypatch):
    """An observer in this process, and the workers forked from it."""
    from torch.utils.data import dataloader
    from torch.utils.data._utils import fetch

    made = Generators()
    monkeypatch.setattr(fetch._MapDatasetFetcher, "fetch", fetch._MapDatasetFetcher.fetch)
    made.install()
    begin = dataloader._BaseDataLoaderIter.__init__

    def begun(this, loader):
        made.expect(loader.dataset, loader.collate_fn)
        begin(this, loader)

    monkeypatch.setattr(dataloader._BaseDataLoaderIter, "__init__", begun)
    return made


def drawn(observer, dataset, epochs=1, **options):
    loader = DataLoader(dataset, 2, **{"num_workers": 2, "multiprocessing_context": "fork", **options})
    for _ in range(epochs):
        for _ in loader:
            pass
    return observer.facts(dataset)


def numpy_state(seed):
    return np.random.Generator(np.random.MT19937(seed))


GENERATORS = {
    "numpy.random.Generator": lambda: np.random.default_rng(1),
    "numpy.random.RandomState": lambda: np.random.RandomState(1),
    "random.Random": lambda: random.Random(1),
    "torch.Generator": lambda: torch.Generator().manual_seed(1),
}


@pytest.mark.parametrize("kind", GENERATORS)
def test_each_kind_in_a_transform_of_a_part(observer, kind):
    part = Subset(Samples(Noise(GENERATORS[kind]())), range(12))
    (facts,) = drawn(observer, part)
    assert (facts.name, facts.kind) == ("Noise.draws", kind)
    assert (facts.workers, facts.epochs, len(set(facts.states))) == ([0, 1], [0, 0], 1)


def test_all_of_a_state_counts(observer):
    """The state of MT19937 is an array of 624 numbers, of which Python shows six."""
    samples = [Samples(Noise(numpy_state(seed))) for seed in (1, 2)]  # both are kept: known by their addresses
    (one,), (other,) = (drawn(observer, each, num_workers=0, multiprocessing_context=None) for each in samples)
    assert one.workers == [-1]
    assert one.states != other.states


def test_what_collates(observer):
    (facts,) = drawn(observer, Unused(None), collate_fn=Collate())
    assert (facts.name, facts.kind, len(set(facts.states))) == ("Collate.rng", "random.Random", 1)


def test_made_alike_in_each_worker(observer):
    (facts,) = drawn(observer, MadeAlikeInTheWorker())
    assert (facts.workers, len(set(facts.states))) == ([0, 1], 1)


def test_workers_start_anew_in_each_epoch(observer):
    (facts,) = drawn(observer, Samples(Noise(np.random.default_rng(0))), epochs=2, num_workers=1)
    assert (facts.workers, facts.epochs, len(set(facts.states))) == ([0, 0], [0, 1], 1)
    (equal,) = equal_generators([[facts]])
    assert (equal.workers, equal.ranks, equal.epochs) == (1, 1, 2)


@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        (Samples(Noise(np.random.default_rng(0))), {"worker_init_fn": seed_worker}),
        (MadeInTheWorker(), {}),
        (ReseededBySample(Noise(random.Random(0))), {}),
        (ReseededBySample(Noise(np.random.RandomState(0))), {}),
        (Unused(Noise(np.random.default_rng(0))), {}),
        (Samples(Noise(np.random.mtrand._rand)), {}),  # seeded by torch in each worker
        (Stream(), {}),
    ],
)
def test_quiet(observer, dataset, options):
    assert equal_generators([drawn(observer, dataset, **options)]) == []


class Augmented(Dataset):
    def __init__(self, augment):
        self.augment = augment

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return float(index) + self.augment()


ALONE = {"num_workers": 0, "multiprocessing_context": None}


@pytest.mark.parametrize("options", [{}, ALONE])
@pytest.mark.parametrize(
    ("augment", "draws"),
    [
        (lambda: 0.0, False),
        (lambda: torch.rand(()).item(), True),
        (random.random, True),
        (lambda: float(np.random.rand()), True),
        (lambda: float(np.random.default_rng(0).random()), False),  # the same for each sample
    ],
)
def test_samples_that_are_made_with_random_numbers(observer, augment, draws, options):
    dataset = Augmented(augment)
    drawn(observer, dataset, **options)
    assert observer.draws(dataset) is draws


def test_random_numbers_of_a_generator_that_the_data_set_holds(observer):
    dataset = Samples(Noise(np.random.default_rng(0)))
    drawn(observer, dataset)
    assert observer.draws(dataset) is True


def test_samples_that_were_not_looked_at(observer):
    assert observer.draws(Augmented(random.random)) is None


def test_quiet_without_gradients(observer):
    with torch.no_grad():
        assert drawn(observer, Samples(Noise(np.random.default_rng(0)))) == []


def test_samples_are_the_same_with_and_without_the_observer(observer):
    seen = list(DataLoader(Samples(Noise(np.random.default_rng(7))), 4))
    alone = np.random.default_rng(7)
    assert torch.equal(torch.cat(seen), torch.tensor([float(at) + alone.random() for at in range(16)]))

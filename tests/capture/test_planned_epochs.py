"""How many epochs a script plans, from the loops around its step."""

from __future__ import annotations

import sys
from argparse import Namespace
from itertools import islice

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from dptune.capture.injected.observe.planned_epochs import ends_early, planned_epochs

from .conftest import SHORT

LOADER = DataLoader(TensorDataset(torch.zeros(4, 1)), batch_size=2)
ARGS = Namespace(epochs=7)
CONFIG = {"training": {"epochs": 12}}


class Bar:
    """A progress bar around something."""

    def __init__(self, iterable):
        self.iterable = iterable

    def __iter__(self):
        return iter(self.iterable)


trange = range


def step():
    return planned_epochs(sys._getframe())


def of_a_batch(loader):
    for _ in Bar(enumerate(loader)):
        pass
    for _ in enumerate(loader):
        return step()
    return None


def counted():
    for _ in range(90):
        for _ in LOADER:
            return step()
    return None


def of_arguments():
    for _ in Bar(range(2, ARGS.epochs + 1)):
        if (found := of_a_batch(LOADER)) is not None:
            return found
    return None


def of_a_configuration():
    epochs = CONFIG["training"]["epochs"]
    bar = Bar(LOADER)
    for fold in range(5):
        for epoch in trange(epochs - fold):
            for _ in bar:
                for _ in range(1):  # optimizers
                    if epoch:
                        return step()
    return None


def of_a_lambda():
    for _ in range(3):
        for _ in LOADER:
            return (lambda: step())()
    return None


def by_steps():
    batches = iter(LOADER)
    for _ in range(90):
        next(batches)
        for _ in range(2):  # optimizers
            return step()
    return None


def endless():
    while True:
        for _ in LOADER:
            return step()


def once():
    for _ in LOADER:
        return step()
    return None


def after_the_batches():
    for _ in range(90):
        for _ in LOADER:
            pass
        return step()
    return None


class Lazy:
    @property
    def epochs(self):
        READ.append(self)
        return 4


READ: list[Lazy] = []


def of_a_property():
    for _ in range(Lazy().epochs):
        for _ in LOADER:
            return step()
    return None


@pytest.mark.parametrize(
    ("train", "epochs"),
    [
        (counted, 90),
        (of_arguments, 6),
        (of_a_configuration, 12),
        (of_a_lambda, 3),
        (by_steps, None),
        (endless, None),
        (once, None),
        (after_the_batches, None),
        (of_a_property, None),
    ],
)
def test_planned(train, epochs):
    READ.clear()
    assert train() == epochs
    assert len(READ) == (train is of_a_property)  # once, by the script itself


SCRIPT = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    def train(model, loader, epochs):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
        for epoch in range(epochs):
            for (x,) in loader:
                model(x).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()

    train(torch.nn.Linear(8, 8), DataLoader(TensorDataset(torch.randn(200, 8)), batch_size=4), epochs=90)
"""


@pytest.mark.records
def test_of_a_recording(profile):
    done = profile(SCRIPT, *SHORT)
    assert done.status == 0, done.err
    (facts,) = done.facts().schedulers
    assert (facts.length, facts.epochs, facts.training_steps) == (90, 90, None)


def early():
    return ends_early(sys._getframe())


DEBUG = False


def whole(loader):
    for _ in range(2):
        for _ in Bar(enumerate(loader)):
            for _ in range(3):
                found = early()
                if not found:
                    break
            if DEBUG:
                break
    return found


def sliced(loader):
    for _ in islice(loader, 1):
        found = early()
    return found


def zipped(loader):
    for _, _ in zip(range(1), loader, strict=False):
        found = early()
    return found


def broken(loader):
    for step, _ in enumerate(loader):
        found = early()
        if step == 1:
            break
    return found


def returned(loader):
    for step, _ in enumerate(loader):
        found = early()
        if step == 1:
            return found
    return None


def outside(loader):
    return early() if loader else None


@pytest.mark.parametrize(
    ("loop", "expected"),
    [(whole, False), (sliced, True), (zipped, True), (broken, True), (returned, True), (outside, None)],
)
def test_a_loop_that_ends_before_its_loader(loop, expected):
    assert loop(DataLoader(TensorDataset(torch.zeros(4, 1)), batch_size=2)) is expected

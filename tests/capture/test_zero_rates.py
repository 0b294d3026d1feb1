"""Optimizer steps at a learning rate of zero."""

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from dptune.capture.injected.observe.places import Places
from dptune.capture.injected.observe.zero_rates import ZeroRates


@pytest.fixture
def observed(monkeypatch):
    places = Places()
    monkeypatch.setattr(Optimizer, "__init__", Optimizer.__init__)
    places.watch(Optimizer)
    return ZeroRates(places)


def stepped(observed, optimizer, rates):
    for rate in rates:
        optimizer.param_groups[-1]["lr"] = rate
        observed.stepped(optimizer)
    return [(facts.optimizer, facts.steps, facts.zero, facts.last_zero) for facts in observed.facts()]


def optimizer_of(groups):
    return torch.optim.SGD([{"params": nn.Linear(2, 1).parameters(), "lr": rate} for rate in groups])


@pytest.mark.parametrize(
    ("groups", "rates", "found"),
    [
        ([0.0], [0.0, 0.0], [("SGD", 2, 2, True)]),
        ([0.0], [0.0, 0.1], [("SGD", 2, 1, False)]),
        ([0.1], [0.1, 0.1], []),
        ([0.1, 0.0], [0.0, 0.0], []),  # one group is trained
        ([0.0], [torch.tensor(0.0)], []),  # not read
    ],
)
def test_steps_at_zero(observed, groups, rates, found):
    optimizer = optimizer_of(groups)
    assert stepped(observed, optimizer, rates) == found

"""What ReduceLROnPlateau is given, and the rates after that."""

import pytest

pytest.importorskip("torch", reason="the module that is tested imports it")
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from dptune.capture.injected.observe.plateaus import Plateaus


@pytest.fixture
def observed(monkeypatch):
    monkeypatch.setattr(ReduceLROnPlateau, "__init__", ReduceLROnPlateau.__init__)
    monkeypatch.setattr(ReduceLROnPlateau, "step", ReduceLROnPlateau.step)
    plateaus = Plateaus()
    plateaus.install()
    return plateaus


def test_values_and_rates(observed):
    optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.5)
    schedule = ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    schedule.step(2.0)
    schedule.step(torch.tensor(3.0))
    schedule.step(metrics=1)
    (facts,) = observed.facts()
    assert (facts.values, facts.rates) == ([2.0, 3.0, 1.0], [0.5, 0.25, 0.25])
    assert "test_plateaus.py:" in facts.where
    assert "test_plateaus.py:" in facts.stepped_at


def test_schedulers_are_apart_and_in_order(observed):
    optimizers = [torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=rate) for rate in (0.1, 0.2)]
    first, second = map(ReduceLROnPlateau, optimizers)
    second.step(4.0)
    assert [facts.values for facts in observed.facts()] == [[], [4.0]]
    first.step(5.0)
    assert [facts.values for facts in observed.facts()] == [[5.0], [4.0]]

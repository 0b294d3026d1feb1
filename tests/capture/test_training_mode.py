"""Models that are evaluated in training mode: which calls count."""

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from dptune.capture.injected.observe.places import Places
from dptune.capture.injected.observe.training_mode import TrainingMode


@pytest.fixture
def places(monkeypatch):
    found = Places()
    monkeypatch.setattr(Optimizer, "__init__", Optimizer.__init__)
    found.watch(Optimizer)
    return found


@pytest.fixture
def made(places):
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.1), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    observed = TrainingMode(places)
    observed.begin()
    yield observed, model, optimizer
    observed.stepped()


@torch.no_grad()
def validate(observed, model, batches=3, clone=False):
    for _ in range(batches):
        rows = torch.randn(8, 4)
        observed.drawn((rows, torch.zeros(8)))
        model(rows.clone() if clone else rows)


@torch.no_grad()
def update_bn(observed, model):
    validate(observed, model)


def counts(observed):
    return [(one.model, one.dropouts, one.norms, one.calls, one.training) for one in observed.facts()]


@pytest.mark.parametrize("clone", [False, True])  # as on another device
def test_calls_on_batches_drawn_without_gradients(made, clone):
    observed, model, _ = made
    validate(observed, model, clone=clone)
    assert counts(observed) == [("Sequential", 1, 1, 3, 3)]
    line = validate.__wrapped__.__code__.co_firstlineno + 5
    assert observed.facts()[0].where.endswith(f"test_training_mode.py:{line}")


def test_evaluation_mode(made):
    observed, model, _ = made
    model.eval()
    validate(observed, model)
    assert counts(observed) == []


def test_a_part_in_training_mode(made):
    """As for dropout that estimates uncertainty."""
    observed, model, _ = made
    model.eval()
    model[2].train()
    validate(observed, model)
    assert counts(observed) == []


def test_statistics_that_are_collected_on_purpose(made):
    observed, model, _ = made
    update_bn(observed, model)
    assert counts(observed) == []


def test_other_calls_without_gradients(made):
    """Of a batch that is trained on, of something that no loader gives, and of training."""
    observed, model, _ = made
    rows = torch.randn(8, 4)
    observed.drawn(rows)
    with torch.no_grad():
        model(rows)
    with torch.no_grad():
        observed.drawn(torch.randn(8, 4))
        model(torch.randn(5, 4))
    model(rows)
    assert counts(observed) == []


def test_calls_are_watched_only_while_something_is_evaluated(made):
    observed, model, _ = made
    call = nn.Module.__call__
    with torch.no_grad():
        observed.drawn(torch.randn(8, 4))
        assert nn.Module.__call__ is not call
    observed.drawn(torch.randn(8, 4))  # of training
    assert nn.Module.__call__ is call
    with torch.no_grad():
        observed.drawn(torch.randn(8, 4))
    observed.stepped()
    assert nn.Module.__call__ is call
    assert not model._forward_pre_hooks


def test_a_model_without_such_layers(places):
    model = nn.Linear(4, 1)
    _optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    observed = TrainingMode(places)
    observed.begin()
    call = nn.Module.__call__
    validate(observed, model)
    assert nn.Module.__call__ is call
    assert counts(observed) == []

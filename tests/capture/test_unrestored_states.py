"""Optimizers that start without the state that the checkpoint has from which the script continues."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from dptune.capture.injected.observe.places import Places
from dptune.capture.injected.observe.unrestored_states import UnrestoredStates


@pytest.fixture
def observed(monkeypatch):
    places = Places()
    monkeypatch.setattr(Optimizer, "__init__", Optimizer.__init__)
    monkeypatch.setattr(torch, "load", torch.load)
    monkeypatch.setattr(torch.serialization, "load", torch.serialization.load)
    places.watch(Optimizer)
    observer = UnrestoredStates(places)
    observer.install()
    yield observer
    observer.end()


def network(outputs=3):
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, outputs))


def train(model, optimizer):
    optimizer.zero_grad()
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()


def adam(model):
    return torch.optim.AdamW(model.parameters(), 1e-3)


def momentum(model):
    return torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)


@pytest.fixture(params=[adam, momentum])
def makes(request):
    return request.param


@pytest.fixture
def path(tmp_path, makes):
    """A checkpoint after one step."""
    model = network()
    optimizer = makes(model)
    train(model, optimizer)
    state = {"model": model.state_dict(), "optim": optimizer.state_dict(), "epoch": 5, "loss": 0.2}
    torch.save(state, tmp_path / "last.pt")
    return tmp_path / "last.pt"


def resumed(path):
    checkpoint = torch.load(path)
    model = network()
    model.load_state_dict(checkpoint["model"])
    start = int(checkpoint["epoch"]) + 1
    return model, checkpoint, start


def returning(path):
    checkpoint = torch.load(path)
    model = network()
    model.load_state_dict(checkpoint["model"])
    return model, checkpoint.get("epoch", 0)


def printing(path):
    checkpoint = torch.load(path)
    model = network()
    model.load_state_dict(checkpoint["model"])
    print(f"from epoch {checkpoint['epoch']}")
    return model, checkpoint


@pytest.mark.parametrize("loads", [resumed, returning])
def test_an_optimizer_without_its_state(observed, path, makes, loads):
    model, *_ = loads(path)
    optimizer = makes(model)
    for _ in range(2):
        train(model, optimizer)
    (found,) = observed.facts()
    assert (found.optimizer, found.key, found.progress) == (type(optimizer).__name__, "optim", "epoch")
    assert found.parameters == 4
    first = loads.__code__.co_firstlineno
    assert found.loaded_at.endswith(f"test_unrestored_states.py:{first + 1}")
    assert "test_unrestored_states.py:" in found.where


def test_a_restored_state(observed, path, makes):
    model, checkpoint, _ = resumed(path)
    optimizer = makes(model)
    optimizer.load_state_dict(checkpoint["optim"])
    train(model, optimizer)
    assert observed.facts() == []


def test_an_epoch_that_is_only_printed(observed, path, makes):
    model, _ = printing(path)
    train(model, makes(model))
    assert observed.facts() == []


def test_fine_tuning_with_a_new_layer(observed, path, makes):
    model, *_ = resumed(path)
    model[2] = nn.Linear(8, 2)
    train(model, makes(model))
    assert observed.facts() == []


def test_a_part_that_starts_anew(observed, path, makes):
    model, *_ = resumed(path)
    nn.init.normal_(model[2].weight)
    train(model, makes(model))
    assert observed.facts() == []


def test_an_optimizer_of_another_kind_has_no_use_for_the_state(observed, path, makes):
    model, *_ = resumed(path)
    train(model, torch.optim.SGD(model.parameters(), 1e-3))
    assert observed.facts() == []


def test_a_checkpoint_of_weights_alone(observed, tmp_path, makes):
    model = network()
    torch.save({"model": model.state_dict(), "epoch": 5}, tmp_path / "weights.pt")
    model, *_ = resumed(tmp_path / "weights.pt")
    train(model, makes(model))
    assert observed.facts() == []


def test_nothing_is_compared_once_it_has_ended(observed, path, makes):
    model, *_ = resumed(path)
    observed.end()
    train(model, makes(model))
    assert observed.facts() == []

"""Optimizer steps on a model in evaluation mode are seen, with the line that switched it; others are not."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

from dptune.capture.injected.observe.evaluation_mode import EvaluationMode
from dptune.capture.injected.observe.places import Places


class Net(nn.Module):
    def __init__(self, drop=0.1):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(drop))
        self.head = nn.Linear(4, 2)


@pytest.fixture
def places(monkeypatch):
    """The constructors and methods that are wrapped are put back."""
    monkeypatch.setattr(nn.Module, "eval", nn.Module.eval)
    for kind in (torch.optim.Optimizer,):
        monkeypatch.setattr(kind, "__init__", kind.__init__)
    found = Places()
    found.watch(torch.optim.Optimizer)
    return found


def optimizing(*parts):
    return torch.optim.SGD([one for part in parts for one in part.parameters()], lr=0.1)


def seen(places, optimizer, *between):
    """After a step, and another after each of these calls."""
    watched = EvaluationMode(places)
    watched.install()
    watched.begin()
    watched.stepped(optimizer)
    for call in between:
        call()
        watched.stepped(optimizer)
    return watched.facts()


def validate(net):
    net.eval()


def test_validation_that_does_not_switch_back(places):
    net = Net()
    (found,) = seen(places, optimizing(net), lambda: validate(net), lambda: None)
    assert (found.model, found.dropouts, found.norms) == ("Net", 1, 1)
    assert (found.steps, found.recorded_steps, found.trained_before) == (2, 3, True)
    line = inspect.getsourcelines(validate)[1] + 1
    assert found.eval_where.startswith("validate (")
    assert found.eval_where.endswith(f"test_evaluation_mode.py:{line})")
    assert found.names == ["backbone.2", "backbone.1"]


def test_through_a_wrapper(places):
    net = Net()
    wrapped = nn.Module()
    wrapped.module = net
    (found,) = seen(places, optimizing(wrapped), lambda: validate(wrapped))
    assert (found.model, found.steps) == ("Net", 1)
    assert found.eval_where.startswith("validate (")


def test_a_model_that_starts_in_evaluation_mode(places):
    net = Net().eval()
    (found,) = seen(places, optimizing(net))
    assert (found.steps, found.recorded_steps, found.trained_before, found.eval_where) == (1, 1, False, None)


def test_recurrent_layers_with_dropout(places):
    net = nn.Sequential(nn.LSTM(4, 4, num_layers=2, dropout=0.2)).eval()
    (found,) = seen(places, optimizing(net))
    assert found.dropouts == 1


def quiet_back_in_training_mode(net):
    def back():
        net.eval()
        net.train()

    return optimizing(net), back


def quiet_frozen_backbone(net):
    net.backbone.eval()
    return optimizing(net), net.backbone.eval


def quiet_only_the_head_is_trained(net):
    net.backbone.requires_grad_(False)
    return optimizing(net.head), lambda: net.train().backbone.eval()


def quiet_norms_by_hand(net):
    """All that holds statistics is kept in evaluation mode; the layers around it are trained."""
    net.backbone[1].eval()
    return optimizing(net), net.backbone[1].eval


def quiet_dropout_left_on(net):
    """Monte Carlo dropout."""

    def on():
        net.eval()
        net.backbone[2].train()

    return optimizing(net), on


def quiet_one_of_two_models(net):
    """The second one is trained, and the first is kept as it is."""
    second = Net()
    net.eval()
    return optimizing(net, second), lambda: second


@pytest.mark.parametrize(
    "case",
    [
        quiet_back_in_training_mode,
        quiet_frozen_backbone,
        quiet_only_the_head_is_trained,
        quiet_norms_by_hand,
        quiet_dropout_left_on,
        quiet_one_of_two_models,
    ],
)
def test_quiet(places, case):
    net = Net()
    optimizer, between = case(net)
    assert seen(places, optimizer, between) == []


def test_quiet_where_evaluation_mode_changes_nothing(places):
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0), nn.LayerNorm(4)).eval()
    assert seen(places, optimizing(net)) == []
    frozen = Net(0.0)
    frozen.backbone[1].requires_grad_(False)
    assert seen(places, torch.optim.SGD([one for one in frozen.eval().parameters() if one.requires_grad], lr=0.1)) == []

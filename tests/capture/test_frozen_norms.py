"""Frozen BatchNorm layers that run in training mode are seen in the warm-up steps; others are not."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
from torch import nn

from dptune.capture.injected.observe.frozen_norms import FrozenNorms
from dptune.capture.injected.observe.places import Places

from .other_observer import through_another_observer


class Net(nn.Module):
    def __init__(self, norm=lambda: nn.BatchNorm1d(4)):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(4, 4), norm(), nn.Sequential(nn.Linear(4, 4), norm()))
        self.head = nn.Linear(4, 2)

    def forward(self, rows):
        return self.head(self.backbone(rows))


ROWS = torch.randn(8, 4)


def frozen(module):
    module.requires_grad_(False)
    return module


def found(run, before=lambda: None):
    """What is seen of some steps."""
    forward, train = nn.BatchNorm1d.forward, nn.Module.train
    watched = FrozenNorms(Places())
    watched.install()
    try:
        before()
        watched.begin()
        run()
    finally:
        watched.end()
    assert (nn.BatchNorm1d.forward, nn.Module.train) == (forward, train)
    return watched.facts()


def test_a_frozen_backbone_in_training_mode():
    net = Net()
    frozen(net.backbone)
    facts = found(lambda: net(ROWS), lambda: net.train())
    assert facts.layers == 2
    assert facts.parts == ["backbone"]
    assert facts.names == ["backbone.1", "backbone.2.1"]
    assert facts.train_where.endswith(f"test_frozen_norms.py:{inspect.currentframe().f_lineno - 4}")
    assert "test_frozen_norms.py" in facts.runs_at


def test_the_line_that_sets_training_mode_past_another_observer():
    net = Net()
    frozen(net.backbone)
    facts = found(lambda: net(ROWS), lambda: through_another_observer(net.train)())
    assert facts.train_where.endswith(f"test_frozen_norms.py:{inspect.currentframe().f_lineno - 1}")


class Pair(nn.Module):
    """A part and its average, which also runs in training mode: as in BYOL and MoCo."""

    def __init__(self):
        super().__init__()
        self.online, self.target = Net(), frozen(Net())

    def forward(self, rows):
        with torch.no_grad():
            self.target(rows)
        return self.online(rows)


@pytest.mark.parametrize("through_data", [False, True])
@pytest.mark.parametrize(("averages", "layers"), [(True, None), (False, 2)])
def test_an_average_of_another_part_follows_it(averages, layers, through_data):
    pair = Pair()

    def run():
        for _ in range(3):
            pair(ROWS)
            with torch.no_grad():
                for average, weight in zip(pair.target.parameters(), pair.online.parameters(), strict=True):
                    weight += 0.1
                    if averages:
                        (average.data if through_data else average).lerp_(weight, 0.1)

    facts = found(run, lambda: pair.train())
    assert (facts and facts.layers) == layers


def test_inside_a_wrapper_and_with_a_pass_without_gradients():
    net = Net()
    frozen(net.backbone)
    wrapped = nn.Module()
    wrapped.module = net

    def run():
        with torch.no_grad():
            features = net.backbone(ROWS)
        net.head(features)

    assert found(run).parts == ["backbone"]


def test_a_whole_model_whose_features_are_trained_on():
    net = frozen(Net())
    assert found(lambda: net(ROWS)).parts == ["Net"]


def quiet_trained():
    net = Net()
    net(ROWS)


def quiet_evaluating():
    net = Net()
    frozen(net.backbone).eval()
    net(ROWS)


def quiet_without_statistics():
    net = Net(lambda: nn.BatchNorm1d(4, track_running_stats=False))
    frozen(net.backbone)
    net(ROWS)


def quiet_without_parameters():
    net = Net(lambda: nn.BatchNorm1d(4, affine=False))
    frozen(net.backbone)
    net(ROWS)


@torch.no_grad()
def quiet_teacher():
    frozen(copy.deepcopy(Net()))(ROWS)


def quiet_in_turn():
    """As a discriminator, frozen while the generator is trained."""
    net = Net()
    net(ROWS)
    frozen(net)(ROWS)


@pytest.mark.parametrize(
    "run",
    [
        quiet_trained,
        quiet_evaluating,
        quiet_without_statistics,
        quiet_without_parameters,
        quiet_teacher,
        quiet_in_turn,
    ],
)
def test_quiet(run):
    assert found(run) is None


def test_nothing_is_computed_otherwise():
    torch.manual_seed(0)
    net = Net()
    other = copy.deepcopy(net)
    outputs = []
    found(lambda: outputs.append(net(ROWS)))
    assert torch.equal(outputs[0], other(ROWS))
    assert torch.equal(net.backbone[1].running_mean, other.backbone[1].running_mean)

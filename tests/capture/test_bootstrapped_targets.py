"""Targets of temporal-difference losses that keep their gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as scripts have it
from torch import nn

from dptune.capture.injected.observe.bootstrapped_targets import BootstrappedTargets

NET = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4))
VALUE, OTHER, BARE = nn.Linear(3, 1), nn.Linear(3, 1), nn.Linear(3, 1, bias=False)
STATES, NEXT, REWARDS = torch.randn(6, 3), torch.randn(6, 3), torch.randn(6)
ACTIONS, DONE = torch.randint(0, 4, (6,)), torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0, 0.0])
IMAGES = torch.randn(6, 4)
RUNNING = torch.ones(6, 1)  # no episode ends in this batch
FADING = torch.linspace(0.5, 0.9, 6)[:, None]
POINTS = torch.rand(6, 3, requires_grad=True)
LATER = torch.tensor([0.0, 0.0, 0.01])  # the last number of a point is its time
FORCE = torch.randn(6, 1)


def found(loss, passes=3):
    observer = BootstrappedTargets()
    observer.begin()
    for _ in range(passes):
        observer.before_pass(loss())
        observer.after_pass()
    observer.end()
    assert not torch.is_anomaly_enabled()
    return observer.facts()


def q(states):
    return NET(states).gather(1, ACTIONS[:, None]).squeeze(1)


def best():
    return NET(NEXT).max(1).values


@pytest.mark.parametrize(
    ("loss", "parameters", "sign"),
    [
        (lambda: F.mse_loss(q(STATES), REWARDS + 0.9 * (1 - DONE) * best()), 4, "episode ends"),
        (lambda: F.smooth_l1_loss(q(STATES), best() * (1 - DONE) * 0.9 + REWARDS), 4, "episode ends"),
        (lambda: F.huber_loss(REWARDS + best() * 0.9, q(STATES)), 4, "actions"),
        (lambda: (REWARDS + 0.9 * best() - q(STATES)).pow(2).mean(), 4, "actions"),
        (lambda: ((q(STATES) - torch.where(DONE > 0, REWARDS, REWARDS + 0.9 * best())) ** 2).sum(), 4, "episode ends"),
        (lambda: F.mse_loss(VALUE(STATES), REWARDS[:, None] + 0.9 * VALUE(NEXT)) / 2 + NET(STATES).mean(), 2, ""),
        (lambda: F.mse_loss(q(STATES).unsqueeze(1), (REWARDS + 0.9 * best()).unsqueeze(1)), 4, "actions"),
        (lambda: F.mse_loss(VALUE(STATES)[:-1, 0], REWARDS[:-1] + 0.9 * VALUE(STATES)[1:, 0]), 2, "order"),
        (lambda: F.mse_loss(VALUE(STATES)[:-1], REWARDS[:-1, None] + 0.9 * VALUE(STATES)[-5:]), 2, "order"),
        (lambda: F.mse_loss(VALUE(STATES), REWARDS[:, None] + 0.9 * (RUNNING * VALUE(NEXT))), 2, "episode ends"),
        (lambda: F.mse_loss(VALUE(STATES), REWARDS[:, None] + FADING * VALUE(NEXT)), 2, ""),
        (lambda: F.mse_loss(VALUE(STATES[:3]), REWARDS[:3, None] + 0.9 * VALUE(STATES[:3] + 0.1)), 2, ""),  # few rows
    ],
)
def test_a_target_that_keeps_its_gradients(loss, parameters, sign):
    (facts,) = found(loss)
    assert facts.sign == sign
    assert facts.discount == pytest.approx(0.9)
    assert facts.passes == facts.passes_seen == 3
    assert facts.parameters == parameters
    assert "test_bootstrapped_targets.py:" in facts.where
    assert facts.where == facts.loss_where


@pytest.mark.parametrize(
    "loss",
    [
        lambda: F.mse_loss(q(STATES), (REWARDS + 0.9 * best()).detach()),
        lambda: F.mse_loss(q(STATES), REWARDS),
        lambda: F.mse_loss(VALUE(STATES), REWARDS[:, None] + 0.9 * OTHER(NEXT)),  # another network
        lambda: F.mse_loss(VALUE(STATES), VALUE(NEXT)),  # two views
        lambda: F.mse_loss(VALUE(STATES), REWARDS[:, None] + VALUE(NEXT)),
        lambda: F.mse_loss(VALUE(STATES), REWARDS[:, None] + 0.1 * VALUE(NEXT)),
        lambda: F.mse_loss(VALUE(STATES), REWARDS[:, None] - 0.9 * VALUE(NEXT)),
        lambda: F.mse_loss(NET(STATES), IMAGES + 0.9 * NET(NEXT)),  # features
        lambda: (REWARDS[:, None] + 0.9 * VALUE(NEXT) - VALUE(STATES)).mean(),  # not squared
    ],
)
def test_other_losses(loss):
    assert found(loss) == []


@pytest.mark.parametrize(
    "loss",
    [
        lambda: F.mse_loss(VALUE(STATES + LATER), FORCE + 0.98 * VALUE(STATES)),
        lambda: (VALUE(100 + STATES + LATER) - (FORCE + 0.98 * VALUE(100 + STATES))).square().mean(),
        lambda: F.mse_loss(VALUE(POINTS * 2), FORCE + 0.98 * VALUE(POINTS)),
        lambda: F.mse_loss(VALUE(STATES)[1:], FORCE[1:] + 0.98 * VALUE(STATES)[:-1]),
        lambda: F.mse_loss(BARE(STATES.unsqueeze(1) + LATER)[:, 0], FORCE + 0.98 * BARE(STATES.unsqueeze(1))[:, 0]),
    ],
)
def test_residuals_of_equations(loss):
    assert found(loss) == []


SCRIPT = """
    import torch
    from torch import nn

    net = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(12):
        value, following = net(torch.randn(6, 3)), net(torch.randn(6, 3))
        target = torch.randn(6, 1) + 0.95 * following
        loss = nn.functional.mse_loss(value, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
WINDOWS = ("--warmup", "4", "--untraced", "3", "--light", "0", "--detailed", "0", "--continue")


@pytest.mark.records
def test_a_recording_names_the_line_of_the_target(profile):
    done = profile(SCRIPT, *WINDOWS)
    assert done.status == 0, done.err
    (facts,) = done.facts().bootstrapped_targets
    assert (facts.where, facts.loss_where) == ("train.py:9", "train.py:10")
    assert (facts.discount, facts.parameters) == (pytest.approx(0.95), 2)

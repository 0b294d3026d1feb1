"""Gradients that are clipped before a GradScaler has unscaled them."""

import sys

import pytest
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from dptune.capture.injected.observe.places import Places
from dptune.capture.injected.observe.scaled_clipping import ScaledClipping


@pytest.fixture
def observed(monkeypatch):
    for module in (torch.nn.utils, torch.nn.utils.clip_grad):
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            monkeypatch.setattr(module, name, getattr(module, name))
    places = Places()
    for kind, method in ((GradScaler, "__init__"), (GradScaler, "step"), (Optimizer, "__init__")):
        monkeypatch.setattr(kind, method, getattr(kind, method))
    for kind in (GradScaler, Optimizer):
        places.watch(kind)
    found = ScaledClipping(places)
    found.install()
    return found


def train(*, unscales=False, enabled=True, clips=True, steps=3):
    """The line that clips, and the norm before and after; with a scale of 1024."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=enabled)
    line, norms = 0, []
    for _ in range(steps):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(2, 4)).mean()).backward()
        if unscales:
            scaler.unscale_(optimizer)
        if clips:
            line = sys._getframe().f_lineno + 1
            norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        scaler.step(optimizer)
        scaler.update()
    return line, norms, (model, optimizer, scaler)


def test_the_line_that_clips_scaled_gradients(observed):
    line, norms, _alive = train()
    assert norms[0] == pytest.approx(1024 * 5**0.5)  # of four weights and a bias, each with a gradient of 1
    facts = observed.facts()
    assert (int(facts.where.rpartition(":")[2]), facts.times) == (line, 3)


@pytest.mark.parametrize("how", [{"unscales": True}, {"enabled": False}, {"clips": False}])
def test_what_is_right_or_has_no_scale_is_not_reported(observed, how):
    _, norms, _alive = train(**how)
    assert observed.facts() is None
    if how.get("clips", True):
        assert norms[0] == pytest.approx(5**0.5)


def test_an_optimizer_that_no_scaler_steps(observed):
    """The scaler belongs to another model; a generator of parameters is left to torch."""
    _, _, _alive = train(unscales=True)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).mean().backward()
    torch.nn.utils.clip_grad_value_((parameter for parameter in model.parameters()), 0.5)
    assert float(model.bias.grad) == 0.5
    optimizer.step()
    assert observed.facts() is None

"""Optimizers that are created anew: small models are trained in this process."""

from __future__ import annotations

import copy

import pytest

pytest.importorskip("torch", reason="the module that is tested imports it")
import torch
from torch import nn

from dptune.capture.injected.observe.renewed_optimizers import RenewedOptimizers


class Places:
    """Each optimizer was created at the same line."""

    def line(self, optimizer):
        return "train.py:9"


def found(optimizer_of, steps=6):
    torch.manual_seed(0)
    model, watch = nn.Linear(4, 4), RenewedOptimizers(Places())
    watch.begin()
    try:
        for step in range(steps):
            trained, optimizer = optimizer_of(model, step)
            trained(torch.randn(2, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    finally:
        watch.end()
    return watch.facts()


def anew(model, step):
    return model, torch.optim.Adam(model.parameters())


def with_momentum(model, step):
    return model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


@pytest.mark.parametrize(("way", "kind"), [(anew, "Adam"), (with_momentum, "SGD")])
def test_a_new_one_for_each_step(way, kind):
    (facts,) = found(way)
    assert (facts.optimizer, facts.where, facts.renewed, facts.parameters) == (kind, "train.py:9", 6, 2)


def kept(model, step, held=[]):  # noqa: B006 - one for all steps
    if not step:
        held[:] = [torch.optim.Adam(model.parameters())]
    return model, held[0]


def for_each_epoch(model, step, held=[]):  # noqa: B006
    if not step % 4:
        held[:] = [torch.optim.Adam(model.parameters())]
    return model, held[0]


def of_a_copy(model, step):
    inner = copy.deepcopy(model)
    return inner, torch.optim.Adam(inner.parameters())


def restored(model, step, held=[{}]):  # noqa: B006
    optimizer = torch.optim.Adam(model.parameters())
    if held[0] and step:
        optimizer.load_state_dict(held[0])
    trained = optimizer.step

    def step_and_keep():
        trained()
        held[0] = optimizer.state_dict()

    optimizer.step = step_and_keep
    return model, optimizer


def without_state(model, step):
    return model, torch.optim.SGD(model.parameters(), 0.1)


@pytest.mark.parametrize("way", [kept, for_each_epoch, of_a_copy, restored, without_state])
def test_one_for_many_steps_of_other_parameters_or_without_a_state(way):
    assert found(way, steps=16) == []

"""Parameters that DDP does not average are those that an optimizer updates and DDP did not take."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dptune.capture.injected.observe import unaveraged
from dptune.capture.injected.observe.places import Places
from dptune.capture.injected.observe.unaveraged import Unaveraged

from .other_observer import through_another_observer

ROWS = torch.randn(8, 4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, rows):
        return self.head(self.body(rows))


@pytest.fixture
def watched(monkeypatch):
    """One process that claims to be one of two; what is wrapped is put back."""
    for kind, name in ((DistributedDataParallel, "__init__"), (nn.Module, "requires_grad_")):
        monkeypatch.setattr(kind, name, getattr(kind, name))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    monkeypatch.setattr(unaveraged.dist, "get_world_size", lambda group=None: 2)
    places = Places()
    places.watch(DistributedDataParallel)
    found = Unaveraged(places)
    found.install()
    yield found
    dist.destroy_process_group()


def step(watched, model, *parts):
    """One step of an optimizer of these parts, or of the whole model."""
    optimizer = torch.optim.SGD([one for part in parts or (model,) for one in part.parameters()], lr=0.1)
    model(ROWS).square().sum().backward()
    optimizer.step()
    watched.stepped(optimizer)
    return optimizer


def unfreeze(net):
    net.body.requires_grad_(True)


def test_layers_that_are_unfrozen_after_wrapping(watched):
    net = Net()
    net.body.requires_grad_(False)
    model = DistributedDataParallel(net)
    step(watched, model)
    assert watched.facts() == []
    unfreeze(net)
    step(watched, model)
    step(watched, model)
    (found,) = watched.facts()
    assert (found.module, found.tensors, found.parameters, found.size_bytes) == ("Net", 2, 20, 80)
    assert found.names == ["body.weight", "body.bias"]
    line = inspect.getsourcelines(unfreeze)[1] + 1
    assert found.unfrozen_where.startswith("unfreeze (")
    assert found.unfrozen_where.endswith(f"test_unaveraged.py:{line})")
    assert "test_unaveraged.py:" in found.where
    assert found.sums == pytest.approx([one.detach().double().sum().item() for one in net.body.parameters()])
    assert found.sums_step == 3


def test_layers_that_are_unfrozen_past_another_observer(watched):
    net = Net()
    net.body.requires_grad_(False)
    model = DistributedDataParallel(net)
    through_another_observer(net.body.requires_grad_)(True)
    step(watched, model)
    (found,) = watched.facts()
    assert found.unfrozen_where.endswith(f"test_unaveraged.py:{inspect.currentframe().f_lineno - 3})")


def test_a_switch_of_each_parameter_and_a_layer_that_is_added(watched):
    net = Net()
    net.body.requires_grad_(False)
    model = DistributedDataParallel(net)
    net.head = nn.Linear(4, 3)
    net.body.bias.requires_grad = True
    step(watched, model)
    (found,) = watched.facts()
    assert (found.tensors, found.parameters, found.unfrozen_where) == (3, 4 + 15, None)


def quiet_plain(net):
    return DistributedDataParallel(net), ()


def quiet_unfrozen_and_not_updated(net):
    net.body.requires_grad_(False)
    model = DistributedDataParallel(net)
    unfreeze(net)
    return model, (net.head,)


def quiet_wrapped_again(net):
    net.body.requires_grad_(False)
    DistributedDataParallel(net)
    unfreeze(net)
    return DistributedDataParallel(net), ()


def quiet_ignored_on_purpose(net):
    net.body.requires_grad_(False)
    net._ddp_params_and_buffers_to_ignore = ["body.weight", "body.bias"]
    model = DistributedDataParallel(net)
    unfreeze(net)
    return model, ()


def quiet_of_another_model(net):
    DistributedDataParallel(Net())
    return net, ()


@pytest.mark.parametrize(
    "case",
    [
        quiet_plain,
        quiet_unfrozen_and_not_updated,
        quiet_wrapped_again,
        quiet_ignored_on_purpose,
        quiet_of_another_model,
    ],
)
def test_quiet(watched, case):
    model, parts = case(Net())
    step(watched, model, *parts)
    assert watched.facts() == []

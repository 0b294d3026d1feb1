"""Parameters without an optimizer: left out by mistake, or fixed on purpose."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torchs

from dptune.capture.injected.observe.left_out import AddedParameters
from dptune.capture.injected.observe.unused_gradients import Unused


class Made:
    """The places of a script, with the optimizers it has made so far."""

    sharded, engine = (), None

    def __init__(self):
        self.optimizers = []

    def alive(self, kind):
        return self.optimizers if kind is torch.optim.Optimizer else []

    def ddp(self):
        return []

    def line(self, thing):
        return "train.py:9"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6))
        self.fc = nn.Linear(6, 2)

    def forward(self, rows):
        return self.fc(self.body(rows))


@pytest.fixture
def script():
    made = Made()
    added = AddedParameters(made)
    known = dict(torchs._global_parameter_registration_hooks)
    added.install()
    yield made, Unused(made, added)
    torchs._global_parameter_registration_hooks.clear()
    torchs._global_parameter_registration_hooks.update(known)


def optimize(made, *modules):
    parameters = [parameter for module in modules for parameter in module.parameters()]
    made.optimizers.append(torch.optim.AdamW(parameters, lr=0.1))


def one_pass(unused, loss):
    def backward():  # observed from the function that the script calls
        unused.before_pass([loss])
        loss.backward()
        unused.after_pass()

    backward()
    return unused.left_out(), unused.facts()


def test_a_layer_replaced_after_the_optimizer_was_made(script):
    made, unused = script
    net = Net()
    optimize(made, net)
    net.fc = nn.Linear(6, 3)
    (found,), discarded = one_pass(unused, net(torch.ones(5, 4)).sum())
    assert (found.tensors, found.of_tensors, found.parameters) == (2, 6, 6 * 3 + 3)
    assert (found.modules, found.optimizer, found.optimizer_where) == (["fc"], "AdamW", "train.py:9")
    assert found.added_later
    assert "test_a_layer_replaced" in found.added_where
    assert "test_left_out.py:" in found.added_where
    assert discarded == []


def test_a_last_layer_missing_from_the_parameter_list(script):
    made, unused = script
    net = Net()
    optimize(made, net.body)
    (found,), _ = one_pass(unused, net(torch.ones(5, 4)).sum())
    assert (found.tensors, found.modules, found.added_later, found.added_where) == (2, ["fc"], False, None)


def test_an_embedding_missing_from_the_parameter_list(script):
    """A few tensors before all others are no body that is kept fixed."""
    made, unused = script
    net = Net()
    optimize(made, net.body[2], net.fc)
    (found,), _ = one_pass(unused, net(torch.ones(5, 4)).sum())
    assert (found.tensors, found.modules) == (2, ["body.0"])


def test_a_group_that_gets_the_layer_later(script):
    made, unused = script
    net = Net()
    optimize(made, net)
    net.fc = nn.Linear(6, 3)
    one_pass(unused, net(torch.ones(5, 4)).sum())
    made.optimizers[0].add_param_group({"params": net.fc.parameters()})
    assert one_pass(unused, net(torch.ones(5, 4)).sum()) == ([], [])


def test_a_layer_made_before_the_optimizer(script):
    made, unused = script
    net = Net()
    net.fc = nn.Linear(6, 3)
    optimize(made, net)
    assert one_pass(unused, net(torch.ones(5, 4)).sum()) == ([], [])


def test_a_frozen_layer(script):
    made, unused = script
    net = Net()
    optimize(made, net.body)
    net.fc.requires_grad_(False)
    assert one_pass(unused, net(torch.ones(5, 4)).sum()) == ([], [])


def test_a_body_under_a_new_head_is_fixed_on_purpose(script):
    """Its gradients are in vain, and that is another finding."""
    made, unused = script
    net = Net()
    optimize(made, net.fc)
    found, (unneeded,) = one_pass(unused, net(torch.ones(5, 4)).sum())
    assert found == []
    assert (unneeded.optimizer, unneeded.tensors, unneeded.of_tensors) == (None, 4, 6)


def test_a_network_in_evaluation_mode_that_judges_outputs(script):
    made, unused = script
    net = Net()
    optimize(made, net)
    judge = nn.Linear(2, 2).eval()  # made after the optimizer, too
    found, (unneeded,) = one_pass(unused, judge(net(torch.ones(5, 4))).sum())
    assert found == []
    assert (unneeded.tensors, unneeded.of_tensors) == (2, 8)


def test_weights_that_the_script_updates_itself(script):
    made, unused = script
    net = Net()
    optimize(made, net.body)
    found = []
    for _ in range(2):  # one line that calls backward
        found.append(one_pass(unused, net(torch.ones(5, 4)).sum()))
        with torch.no_grad():
            net.fc.weight.add_(1.0)
    assert found[0][0] != []
    assert found[1] == ([], [])


class Listed(nn.Module):
    """Keeps its layers where torch does not look for them."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.layers = [nn.Sequential(nn.Linear(6, 6), nn.ReLU()), nn.Linear(6, 2)]

    def forward(self, rows):
        rows = self.first(rows)
        for layer in self.layers:
            rows = layer(rows)
        return rows


def test_layers_in_a_plain_list_have_the_line_that_assigns_it(script):
    made, unused = script
    net = Listed()
    optimize(made, net)
    (found,), _ = one_pass(unused, net(torch.ones(5, 4)).sum())
    assert (found.tensors, found.of_tensors, found.listed_in) == (4, 6, "Listed.layers")
    file, _, line = found.listed_where.rpartition(":")
    assert file.endswith("test_left_out.py")
    assert "self.layers = [" in Path(__file__).read_text().splitlines()[int(line) - 1]


def test_other_parameters_are_in_no_list(script):
    made, unused = script
    net = Net()
    optimize(made, net.body)
    (found,), _ = one_pass(unused, net(torch.ones(5, 4)).sum())
    assert (found.listed_in, found.listed_where) == ("", None)

"""Backward passes through one graph from several lines of a script: real passes of a small model, in this process."""

import pytest

pytest.importorskip("torch", reason="the module that is tested imports it")
import torch
from torch import nn

from dptune.capture.injected.observe import process_rank
from dptune.capture.injected.observe.left_out import AddedParameters
from dptune.capture.injected.observe.unused_gradients import Unused


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    """So that operators are timed."""
    monkeypatch.setattr(process_rank, "device_kind", lambda: "cpu")


class Places:
    """Of a script with one optimizer."""

    sharded, engine = (), None

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def alive(self, kind):
        return [self.optimizer] if kind is torch.optim.Optimizer else []


class Steps:
    """Steps of a model of two parts, whose passes are followed."""

    def __init__(self):
        self.body, self.head = nn.Linear(32, 32), nn.Linear(32, 1)
        self.optimizer = torch.optim.SGD([*self.body.parameters(), *self.head.parameters()], lr=0.1)
        places = Places(self.optimizer)
        self.unused = Unused(places, AddedParameters(places))
        self.unused.timing = True

    def backward(self, loss, retain=False):
        self.unused.before_pass(loss, retain=retain)
        loss.backward(retain_graph=retain)
        self.unused.after_pass()

    def update(self):
        self.optimizer.step()
        self.unused.stepped(self.optimizer)
        self.optimizer.zero_grad()

    def run(self, step):
        for _ in range(6):
            step(self)
            self.update()
        return self.unused.repeated()


def rows():
    return torch.randn(16, 32)


def two_lines(steps):
    shared = steps.body(rows())
    steps.backward(steps.head(shared).mean(), retain=True)
    steps.backward(shared.square().mean())


def three_lines(steps):
    shared = steps.body(rows())
    steps.backward(steps.head(shared).mean(), retain=True)
    steps.backward(shared.square().mean(), retain=True)
    steps.backward(steps.head(shared).square().mean())


def a_loop_and_a_last_pass(steps):
    shared = steps.body(rows())
    for power in (1, 2):
        steps.backward(steps.head(shared).pow(power).mean(), retain=True)
    steps.backward(shared.square().mean())


def other_graphs(steps):
    steps.backward(steps.head(steps.body(rows())).mean(), retain=True)
    steps.backward(steps.body(rows()).square().mean())


def gradients_taken(steps):
    shared = steps.body(rows())
    steps.backward(steps.head(shared).mean(), retain=True)
    steps.body.zero_grad()
    steps.backward(shared.square().mean())


def gradients_set_to_zero(steps):
    shared = steps.body(rows())
    steps.backward(steps.head(shared).mean(), retain=True)
    steps.body.weight.grad.zero_()
    steps.backward(shared.square().mean())


def updated_between(steps):
    first, second = nn.Linear(32, 32), rows()
    steps.backward(steps.head(first(second)).mean(), retain=True)
    steps.update()
    steps.backward(steps.body(second).mean())


@pytest.mark.parametrize(("step", "passes", "others"), [(two_lines, 2, 1), (three_lines, 3, 2)])
def test_passes_from_several_lines(step, passes, others):
    (found,) = Steps().run(step)
    assert (found.passes, len(found.also_at)) == (passes, others)
    assert len({found.where, *found.also_at}) == passes
    assert 0 < found.shared_part < 1
    assert found.again_ns > 0


def test_a_loop_whose_graph_another_line_goes_through_again():
    (found,) = Steps().run(a_loop_and_a_last_pass)
    assert (found.passes, len(found.also_at)) == (3, 1)


@pytest.mark.parametrize("step", [other_graphs, gradients_taken, gradients_set_to_zero, updated_between])
def test_passes_that_add_up_to_nothing_in_one_graph(step):
    assert Steps().run(step) == []

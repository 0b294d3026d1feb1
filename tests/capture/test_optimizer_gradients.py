"""Optimizer steps without gradients, and with those of earlier steps."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dptune.capture.injected.observe.optimizer_gradients import OptimizerGradients

WINDOWS = ("--warmup", "20", "--untraced", "3", "--light", "0", "--detailed", "0", "--continue")
SCRIPT = """
    import torch
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("gloo")
    model = nn.Linear(8, 8)
    stale = torch.optim.AdamW(model.parameters(), lr=1e-3)
    fully_shard(model)
    head = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(head.parameters(), lr=1e-3)
    for step in range(40):
        head(model(torch.randn(4, 8))).square().mean().backward()
        optimizer.step()
        stale.step()
"""


@pytest.mark.records
def test_a_recording_names_both(profile):
    """An optimizer that fully_shard has left behind, and one whose gradients nothing clears.

    More steps warm up than are watched: watching ends in one of torch's hooks, which must all still run.
    """
    done = profile(SCRIPT, *WINDOWS, "--nproc-per-node", "2")
    assert done.status == 0, done.err
    none, kept = sorted(done.facts().optimizer_gradients, key=lambda facts: facts.optimizer)
    assert (kept.optimizer, kept.where, kept.step_where) == ("SGD", "train.py:11", "train.py:14")
    assert (kept.keeps, kept.kept, kept.has_none, kept.backward_where) == (True, kept.steps - 1, False, "train.py:13")
    assert (none.optimizer, none.where, none.step_where, none.tensors) == ("AdamW", "train.py:8", "train.py:15", 2)
    assert (none.has_none, none.keeps, none.elsewhere, none.sharded) == (True, False, 2, True)


class Script:
    """A model, an optimizer and the observer, which is told of passes as the meters do."""

    engine = None
    sharded = ()

    def __init__(self, *optimizers):
        self.optimizers = optimizers
        self.observer = OptimizerGradients(self)

    def alive(self, kind):
        return list(self.optimizers)

    def line(self, optimizer):
        return "train.py:3"

    def backward(self, loss):
        self.observer.before_pass(loss)
        loss.backward()
        self.observer.after_pass()

    def seen(self, step, steps=5):
        self.observer.begin()
        for number in range(steps):
            step(self, number)
        self.observer.end()
        return self.observer.facts()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))


def loss(model):
    return model(torch.randn(4, 8)).square().mean()


def by_hand(model, _):
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()


def at_once(model, _):
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    if gradients:
        torch._foreach_zero_(gradients)


CLEARS = {
    "to None": lambda model, optimizer: optimizer.zero_grad(),
    "to zero": lambda model, optimizer: optimizer.zero_grad(set_to_none=False),
    "by the module": lambda model, optimizer: model.zero_grad(set_to_none=False),
    "by hand": by_hand,
    "all at once": at_once,
}


@pytest.mark.parametrize("clear", CLEARS.values(), ids=CLEARS)
@pytest.mark.parametrize("after", [False, True])
def test_cleared_gradients_are_no_finding(clear, after):
    model = network()
    optimizer = torch.optim.Adam(model.parameters())

    def step(script, number):
        if not after:
            clear(model, optimizer)
        script.backward(loss(model))
        script.backward(loss(model))
        optimizer.step()
        if after:
            clear(model, optimizer)

    (found,) = Script(optimizer).seen(step)
    assert (found.steps, found.without, found.kept) == (5, 0, 0)


@pytest.mark.parametrize(("every", "kept"), [(100, 5), (2, 3), (3, 4)])
def test_gradients_that_steps_use_again_are_counted(every, kept):
    """Of steps 0 to 5 all but those right after a clearing: 0; 0, 2 and 4; or 0 and 3."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(script, number):
        if number % every == 0:
            optimizer.zero_grad()
        script.backward(loss(model))
        optimizer.step()

    (found,) = Script(optimizer).seen(step, steps=6)
    assert (found.steps, found.kept, found.keeps) == (6, kept, True)


@pytest.mark.parametrize("to_none", [False, True])
def test_the_pass_of_another_loss_does_not_count(to_none):
    """As in a GAN: the generator's pass adds to the critic's gradients, which are cleared before the critic's own."""
    maker, critic = network(), network()
    making, judging = (torch.optim.Adam(model.parameters()) for model in (maker, critic))

    def step(script, number):
        judging.zero_grad(set_to_none=to_none)
        script.backward(critic(maker(torch.randn(4, 8)).detach()).mean())
        judging.step()
        making.zero_grad(set_to_none=to_none)
        script.backward(-critic(maker(torch.randn(4, 8))).mean())
        making.step()

    found = Script(making, judging).seen(step)
    assert [(facts.steps, facts.without, facts.kept) for facts in found] == [(5, 0, 0)] * 2


def test_gradients_that_the_script_scales_or_replaces_are_its_own():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def scaled(script, number):
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(0.9)
        script.backward(loss(model))
        optimizer.step()

    (found,) = Script(optimizer).seen(scaled)
    assert found.kept == 0

    def replaced(script, number):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        script.backward(loss(model))
        optimizer.step()

    (found,) = Script(optimizer).seen(replaced)
    assert found.kept == 0


def test_an_optimizer_of_replaced_parameters_has_no_gradients():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model[2] = nn.Linear(8, 8)  # of the first layer the optimizer has the gradients
    partly = torch.optim.Adam(nn.Linear(8, 8).parameters())

    def step(script, number):
        model.zero_grad()
        script.backward(loss(model))
        optimizer.step()
        partly.step()

    whole, none = Script(optimizer, partly).seen(step)
    assert (whole.without, whole.has_none) == (0, False)
    assert (none.steps, none.without, none.has_none, none.tensors, none.sharded) == (5, 5, True, 2, False)
    assert none.elsewhere >= 2  # the new layer's


def test_steps_with_a_closure_are_not_judged():
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def step(script, number):
        def closure():
            optimizer.zero_grad()
            value = loss(model)
            script.backward(value)
            return value

        script.backward(loss(network()))
        optimizer.step(closure)

    assert Script(optimizer).seen(step) == []


def test_two_steps_are_too_few():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(script, number):
        script.backward(loss(model))
        optimizer.step()

    (found,) = Script(optimizer).seen(step, steps=2)
    assert (found.kept, found.keeps) == (1, False)

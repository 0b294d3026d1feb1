"""Parameters that an optimizer holds and no gradient reaches, though their modules run."""

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from dptune.capture.injected.observe.module_calls import ModuleCalls
from dptune.capture.injected.observe.places import Places
from dptune.capture.injected.observe.unreached import Unreached


@pytest.fixture
def observed(monkeypatch):
    places = Places()
    monkeypatch.setattr(Optimizer, "__init__", Optimizer.__init__)
    places.watch(Optimizer)
    calls = ModuleCalls()
    found = Unreached(places, calls)
    found.begin()
    calls.begin()
    yield found
    calls.end()
    found.end()


class Two(nn.Module):
    """An encoder and a head; `how` the encoder's output gets to the head, at each step."""

    def __init__(self, how):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4))
        self.head = nn.Linear(4, 1)
        self.how = how

    def forward(self, rows, step):
        return self.head(self.how(self.encoder, rows, step))


def without_gradients(encoder, rows, step):
    with torch.no_grad():
        return encoder(rows)


CUT = {
    "detached": lambda encoder, rows, step: encoder(rows).detach(),
    "converted": lambda encoder, rows, step: torch.tensor(encoder(rows).tolist()),
    "rounded": lambda encoder, rows, step: (encoder(rows) > 0).float(),
    "unused": lambda encoder, rows, step: encoder(rows)[:0].sum(0) + rows if step < 0 else _aside(encoder, rows),
}


def _aside(encoder, rows):
    encoder(rows)
    return rows


WHOLE = {
    "used": lambda encoder, rows, step: encoder(rows),
    "not run": lambda encoder, rows, step: rows,
    "no_grad": without_gradients,
    "later": lambda encoder, rows, step: encoder(rows) if step == 2 else encoder(rows).detach(),
    "sometimes": lambda encoder, rows, step: encoder(rows).detach() if step % 2 else rows,
}


def train(observed, how, steps=4, **in_step):
    torch.manual_seed(0)
    model = Two(how)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.randn(3, 4), step).mean().backward()
        optimizer.step(**in_step)
    observed.end()
    return [(one.optimizer, one.names, one.unreached, one.parameters, one.steps) for one in observed.facts()], model


def test_steps_with_a_closure_are_left_out(observed):
    assert not train(observed, CUT["detached"], closure=lambda: None)[0]


@pytest.mark.parametrize("how", CUT)
def test_a_part_that_is_cut_off(observed, how):
    found, model = train(observed, CUT[how])
    assert sum(each.numel() for each in model.encoder.parameters()) == 58
    assert found == [("SGD", ["encoder.0", "encoder.2"], 58, 63, 3)]


@pytest.mark.parametrize("how", WHOLE)
def test_a_part_that_is_trained_or_does_not_run(observed, how):
    found, _model = train(observed, WHOLE[how])
    assert found == []


def test_frozen_parts_are_none(observed):
    model = Two(CUT["detached"])
    model.encoder.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        model(torch.randn(3, 4), step).mean().backward()
        optimizer.step()
    observed.end()
    assert observed.facts() == []


class Bringing(Optimizer):
    """Finds the gradients elsewhere, as in a flat buffer, when it steps."""

    def step(self):
        for group in self.param_groups:
            for each in group["params"]:
                each.data.sub_(0.1)


def brought(model):
    return Bringing(model.parameters(), {"lr": 0.1})


def taken_by_hooks(model):
    def update(parameter):
        parameter.data.sub_(parameter.grad, alpha=0.1)
        parameter.grad = None

    for each in model.encoder.parameters():
        each.register_post_accumulate_grad_hook(update)
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("how", "optimizer_of"), [("detached", brought), ("used", taken_by_hooks)], ids=["brought", "taken"]
)
def test_gradients_that_are_there_only_within_the_step_or_the_pass(observed, how, optimizer_of):
    model = Two({**CUT, **WHOLE}[how])
    optimizer = optimizer_of(model)
    for step in range(4):
        optimizer.zero_grad()
        model(torch.randn(3, 4), step).mean().backward()
        optimizer.step()
    observed.end()
    assert observed.facts() == []


def test_weights_that_the_script_updates_itself(observed):
    """As a moving average of the inputs, of a codebook."""
    model = Two(CUT["detached"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        model(torch.randn(3, 4), step).mean().backward()
        optimizer.step()
        for each in model.encoder.parameters():
            each.data.mul_(0.9).add_(0.1)
    observed.end()
    assert observed.facts() == []

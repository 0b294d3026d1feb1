"""The call whose input leads a backward pass to parameters that it is not meant for."""

import sys

import pytest
import torch
from torch import nn

from dptune.capture.injected.observe.left_out import AddedParameters
from dptune.capture.injected.observe.places import Places
from dptune.capture.injected.observe.unused_gradients import Unused


class Script:
    """A generator, a discriminator and their optimizers, observed."""

    def __init__(self, monkeypatch):
        places = Places()
        monkeypatch.setattr(torch.optim.Optimizer, "__init__", torch.optim.Optimizer.__init__)
        places.watch(torch.optim.Optimizer)
        self.generator = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4))
        self.discriminator = nn.Linear(4, 1)
        self.of_generator = torch.optim.SGD(self.generator.parameters(), lr=0.1)
        self.of_discriminator = torch.optim.SGD(self.discriminator.parameters(), lr=0.1)
        self.unused = Unused(places, AddedParameters(places))

    def call(self, module, *args):
        """As `nn.Module.__call__` is watched; the line that is noted is that of the test."""
        self.unused.inputs.note(module, args, {}, sys._getframe(1))
        return module(*args)

    def update(self, loss, optimizer, **more):
        optimizer.zero_grad()
        self.unused.before_pass([loss])
        loss.backward(**more)
        self.unused.after_pass()
        optimizer.step()
        self.unused.stepped(optimizer)


@pytest.fixture
def script(monkeypatch):
    return Script(monkeypatch)


def steps(script, judged, count=5):
    for _ in range(count):
        fake = script.call(script.generator, torch.ones(2, 3))
        script.update(judged(fake), script.of_discriminator, retain_graph=True)
        script.update(script.call(script.discriminator, fake).mean(), script.of_generator)
    return script.unused.facts()


def test_the_discriminators_step_gets_to_the_generator_through_one_call(script):
    line = []

    def judged(fake):
        line[:] = [sys._getframe().f_lineno + 1]
        return script.call(nn.Flatten(), script.call(script.discriminator, fake)).square().mean()

    of_generator, of_discriminator = steps(script, judged)
    assert (of_generator.tensors, of_generator.of_tensors) == (4, 6)
    assert int(of_generator.entered_at.rpartition(":")[2]) == line[0]
    # The generator's own step needs the pass through the discriminator: nothing could be detached.
    assert (of_discriminator.tensors, of_discriminator.entered_at) == (2, None)


def test_an_input_that_leads_to_wanted_parameters_too_is_left(script):
    """The discriminator's first layer feeds the generator's output: without its graph it would not be trained."""
    first = nn.Linear(4, 4)
    script.of_discriminator.add_param_group({"params": first.parameters()})
    found = steps(script, lambda fake: script.call(script.discriminator, first(fake)).square().mean())
    assert [facts.entered_at for facts in found if facts.tensors == 4] == [None]


def test_nothing_is_noted_of_calls_by_libraries_or_without_a_graph(script):
    inputs = script.unused.inputs
    inputs.note(script.discriminator, (torch.ones(2, 4),), {}, sys._getframe())
    assert inputs._calls == []
    inputs.note(script.discriminator, ([script.generator(torch.ones(2, 3))],), {}, sys._getframe())
    assert len(inputs._calls) == 1

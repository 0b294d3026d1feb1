"""The call whose input leads a backward pass to parameters that it is not meant for."""

import functools
import inspect
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dptune.capture.injected.observe.left_out import AddedParameters
from dptune.capture.injected.observe.places import OURS, Places
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
        self.unused.inputs.note(module, args, {}, self.between(sys._getframe(1)))
        return module(*args)

    @staticmethod
    def between(frame):
        """The frame that an observer is called from."""
        return frame

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


def test_the_line_is_the_scripts_where_another_observer_passes_the_call_on(script):
    """Whichever of them wraps `nn.Module.__call__` last is called by the other."""
    passed_on = functools.partial(eval, compile("inspect.currentframe()", f"{OURS}observe/other.py", "eval"))
    script.between = lambda frame: SimpleNamespace(f_code=passed_on({"inspect": inspect}).f_code, f_back=frame)
    of_generator, _ = steps(script, lambda fake: script.call(script.discriminator, fake).square().mean())
    assert of_generator.entered_at.startswith("tests/capture/test_graph_inputs.py:")


def test_an_input_that_leads_to_wanted_parameters_too_is_left(script):
    """The discriminator's first layer feeds the generator's output: without its graph it would not be trained."""
    first = nn.Linear(4, 4)
    script.of_discriminator.add_param_group({"params": first.parameters()})
    found = steps(script, lambda fake: script.call(script.discriminator, first(fake)).square().mean())
    assert [facts.entered_at for facts in found if facts.tensors == 4] == [None]


def test_a_module_that_no_optimizer_updates_has_the_line_that_calls_it(script):
    """Its own layers run later, and the trained head is another module."""
    body, head = script.generator, script.discriminator
    script.unused._places._made[torch.optim.Optimizer].pop(0)  # only the head is trained
    del script.of_generator
    for _ in range(3):
        line = sys._getframe().f_lineno + 1
        rows = script.call(body, torch.ones(2, 3))
        script.call(body[0], torch.ones(2, 3))
        script.update(script.call(head, rows).mean(), script.of_discriminator)
    (found,) = script.unused.facts()
    assert (found.optimizer, found.tensors, int(found.runs_at.rpartition(":")[2])) == (None, 4, line)


def test_calls_by_libraries_are_not_noted(script):
    inputs = script.unused.inputs
    code = compile("import sys; frame = sys._getframe()", "/venv/lib/python3/site-packages/a/b.py", "exec")
    exec(code, library := {})
    inputs.note(script.discriminator, (torch.ones(2, 4),), {}, library["frame"])
    assert inputs.runs_at({id(parameter) for parameter in script.discriminator.parameters()}) is None
    inputs.note(script.discriminator, ([torch.ones(2, 4)],), {}, sys._getframe())
    assert inputs.runs_at({id(parameter) for parameter in script.discriminator.parameters()}) is not None
    assert inputs.runs_at(set()) is None
    inputs.stepped()
    assert inputs.runs_at({id(parameter) for parameter in script.discriminator.parameters()}) is None

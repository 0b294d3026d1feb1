"""Forward hooks whose results nothing reads: real hooks, in steps of plain torch."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
from torch import nn

from dptune.capture.injected.observe.hook_calls import HookCalls
from dptune.capture.injected.observe.registered_hooks import _METHODS, RegisteredHooks
from dptune.capture.injected.observe.same_results import SameResults


class Uncompiled:
    compiled = ()


@pytest.fixture
def found(monkeypatch):
    """What is found in steps with hooks that `register` adds to a model, and a loss of its outputs."""
    for method in _METHODS:
        monkeypatch.setattr(nn.Module, method, getattr(nn.Module, method))
    hooks = RegisteredHooks()
    hooks.install()

    def facts(register, loss_of=lambda outputs: outputs.square().mean(), steps=4):
        calls = HookCalls(hooks.forward)
        observer = SameResults(Uncompiled(), others=(calls,))
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        register(model)
        observer.begin()
        try:
            for _ in range(steps):
                loss = loss_of(model(torch.rand(32, 8)))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                observer.ticked()
        finally:
            observer.end()
        return calls.facts()

    return facts


class Recorder:
    """What a script keeps."""

    def __init__(self, compute):
        self.kept, self.compute = [], compute

    def record(self, module, inputs, output):
        self.kept.append(self.compute(output))

    def __call__(self, module, inputs):
        self.kept.append(self.compute(inputs[0]))


def as_array(output):
    return output.detach().double().numpy().copy()


def registering(compute, layers=slice(None)):
    recorder = Recorder(compute)

    def register(model):
        for layer in model[layers]:
            layer.register_forward_hook(recorder.record)

    return register


def test_copies_of_all_outputs(found):
    (facts,) = found(registering(as_array))
    assert facts.function == "Recorder.record"
    assert facts.where.startswith("tests/capture/test_hook_calls.py:")
    assert (facts.modules, facts.calls, facts.steps, facts.arrays) == (3, 9, 3, True)
    assert set(facts.operators) == {"detach", "double", "numpy"}


@pytest.mark.parametrize(
    "compute",
    [
        lambda output: output.std().item(),  # with a gradient that no backward pass needs
        lambda output: output.detach().clone(),
        lambda output: torch.histc(output.detach()),
    ],
)
def test_what_is_kept_and_not_read(found, compute):
    assert [(facts.modules, facts.arrays) for facts in found(registering(compute))] == [(3, False)]


def test_hooks_of_any_kind(found):
    """Functions with arguments, and objects that are called before the module."""
    kept = []

    def record(name, module, inputs, output):
        kept.append((name, output.detach().clone()))

    def register(model):
        model[0].register_forward_hook(functools.partial(record, "first"))
        model[2].register_forward_pre_hook(Recorder(as_array))

    assert {facts.function for facts in found(register)} == {"record", "Recorder.__call__"}


def test_hooks_that_are_removed(found):
    def register(model):
        handles = [layer.register_forward_hook(Recorder(as_array).record) for layer in model]
        handles[0].remove()

    assert [facts.modules for facts in found(register)] == [2]


FEATURES = []


def of_features(outputs):
    """A loss of what hooks kept of this step."""
    loss = outputs.square().mean() + sum(features.mean() for features in FEATURES)
    FEATURES.clear()
    return loss


def keeps(module, inputs, output):
    FEATURES.append(output)


def keeps_a_part(module, inputs, output):
    FEATURES.append(output.mean(1))


def keeps_a_target(module, inputs, output):
    FEATURES.append(output.detach().clone())


def scales(module, inputs, output):
    return 2 * output


def clamps(module, inputs, output):
    output.data.clamp_(max=1)


@pytest.mark.parametrize("hook", [keeps, keeps_a_part, keeps_a_target, scales, clamps])
def test_what_training_needs(found, hook):
    FEATURES.clear()
    assert found(lambda model: model[0].register_forward_hook(hook), of_features) == []


def test_a_local_loss(found):
    """No operator outside of the hook takes it, but the hook trains the layer with it."""

    def train(module, inputs, output):
        output.abs().mean().backward(retain_graph=True)

    assert found(lambda model: model[0].register_forward_hook(train)) == []


def test_statistics_that_the_module_has(found):
    """A buffer, which may be part of its next forward pass."""

    def register(model):
        model.register_buffer("running", torch.zeros(16))

        def update(module, inputs, output):
            model.running.lerp_(output.detach().mean(0), 0.1)

        model[0].register_forward_hook(update)

    assert found(register) == []


def test_a_hook_that_computes_in_every_second_step(found):
    numbers = itertools.count()

    def register(model):
        recorder = Recorder(as_array)
        model[0].register_forward_hook(lambda *given: None if next(numbers) % 2 else recorder.record(*given))

    assert found(register) == []


def test_without_hooks(found):
    assert found(lambda model: None) == []

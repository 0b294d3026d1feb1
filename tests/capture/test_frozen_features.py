"""Modules that no optimizer trains, on the batch as the loader gives it."""

from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="the module that is tested imports it")
import torch
from torch import nn

from dptune.capture.injected.observe import frozen_features
from dptune.capture.injected.observe.frozen_features import FrozenFeatures
from dptune.capture.injected.observe.module_calls import ModuleCalls
from dptune.capture.injected.observe.tensor_samples import elements


class Places:
    """What a script has made: one optimizer, and maybe the Trainer of a library."""

    compiled, engine = (), None

    def __init__(self, optimizer, trainers=()):
        self.optimizer, self.trainers = optimizer, trainers

    def alive(self, kind):
        if kind == "Trainer":
            return self.trainers
        return [self.optimizer] if isinstance(self.optimizer, kind) else []


def encoder(*more):
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), *more, nn.Linear(32, 4))


def watched(
    frozen,
    *,
    prepare=lambda x: x,
    gradients=False,
    steps=3,
    after_step=lambda frozen: None,
    ahead=0,
    copied=False,
    trainers=(),
):
    """The facts of steps that train a head on what a module makes of the batch, which is drawn some `ahead`."""
    head = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(head.parameters(), 0.1)
    calls = ModuleCalls()
    observer = FrozenFeatures(Places(optimizer, trainers), calls)
    calls.begin()
    batches = []
    for step in range(-ahead, steps):
        batches.append(torch.randn(8, 6))
        observer.drawn((batches[-1], torch.zeros(8)))
        if step < 0:
            continue
        if step == 0:
            observer.begin()
        x = batches.pop(0)
        if copied:
            x = x.clone()  # and the batch is freed
        with torch.set_grad_enabled(gradients):
            features = frozen(prepare(x))
        head(features).square().mean().backward()
        optimizer.step()
        after_step(frozen)
        observer.ticked()
    calls.end()
    observer.end()
    return observer.facts()


def test_a_frozen_encoder():
    (facts,) = watched(encoder().requires_grad_(False))
    assert (facts.module, facts.calls, len(facts.step_ns)) == ("Sequential", 3, 3)
    assert 0 < facts.step_share < 1
    assert "test_frozen_features.py:" in facts.where


@pytest.mark.parametrize(
    "prepare",
    [
        lambda x: x.clone(),  # as on another device
        lambda x: x.bfloat16().float(),
        lambda x: x.view(8, 6),
    ],
)
def test_copies_of_the_batch(prepare):
    assert len(watched(encoder().requires_grad_(False), prepare=prepare)) == 1


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("ahead", [1, 4])
def test_batches_that_a_library_draws_ahead(ahead, copied):
    (facts,) = watched(encoder().requires_grad_(False), ahead=ahead, copied=copied)
    assert (facts.calls, len(facts.step_ns)) == (3, 3)
    assert watched(encoder().requires_grad_(False), ahead=ahead, prepare=lambda x: x.flip(0)) == []


def test_a_module_without_gradients_by_its_call():
    assert len(watched(encoder())) == 1


def test_evaluation_mode_switches_dropout_off():
    frozen = encoder(nn.Dropout(0.1), nn.BatchNorm1d(32)).requires_grad_(False)
    assert watched(frozen) == []
    assert len(watched(frozen.eval())) == 1


class DropPath(nn.Module):
    def forward(self, x):
        return x * (torch.rand(len(x), 1) < 0.9) if self.training else x


class FunctionalDropout(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x, 0.1, training=self.training)


class Attention(nn.MultiheadAttention):
    def __init__(self):
        super().__init__(32, 2, dropout=0.1)

    def forward(self, x):
        return super().forward(x[:, None], x[:, None], x[:, None], need_weights=False)[0][:, 0]


@pytest.mark.parametrize("layer", [DropPath, FunctionalDropout, Attention])
def test_random_numbers_of_any_kind(layer):
    frozen = encoder(layer()).requires_grad_(False)
    assert watched(frozen) == []
    assert len(watched(frozen.eval())) == 1


@pytest.mark.parametrize(
    "prepare",
    [
        lambda x: x + 0.1 * torch.randn_like(x),
        lambda x: x.flip(0),
        lambda x: torch.cat([x, x]),
        lambda x: x.requires_grad_(),
    ],
)
def test_other_inputs_than_the_batch(prepare):
    assert watched(encoder().requires_grad_(False), prepare=prepare) == []


def test_a_gradient_that_goes_through_it():
    assert watched(encoder(), gradients=True) == []


def test_weights_that_change():
    def average(frozen):
        with torch.no_grad():
            for parameter in frozen.parameters():
                parameter.mul_(0.99)

    assert watched(encoder().requires_grad_(False), after_step=average) == []


PROMPT = torch.randn(8, 6)


def negative_too(x):
    return torch.cat([PROMPT, -PROMPT])


@pytest.mark.parametrize("prepare", [lambda x: PROMPT, lambda x: PROMPT.clone(), negative_too])
def test_the_same_inputs_in_every_step(prepare):
    (facts,) = watched(encoder().requires_grad_(False), prepare=prepare)
    assert (facts.same_inputs, len(facts.step_ns)) == (1, 3)


class Rounding(nn.Module):
    """Adds up in another order each time, as torch's ways to compute an encoder differ."""

    def __init__(self):
        super().__init__()
        self.weight, self.calls = nn.Parameter(torch.ones(6, 4)), 0

    def forward(self, x):
        self.calls += 1
        return x @ self.weight * (1 + 1e-6 * self.calls)


def test_outputs_agree_up_to_rounding():
    (facts,) = watched(Rounding().requires_grad_(False), prepare=lambda x: PROMPT)
    assert facts.same_inputs == 1


def test_two_inputs_that_return_in_every_step():
    frozen = encoder().requires_grad_(False)
    (facts,) = watched(lambda x: frozen(x) + frozen(-PROMPT), prepare=lambda x: PROMPT)
    assert (facts.same_inputs, facts.calls) == (2, 6)


@pytest.mark.parametrize(
    "prepare",
    [
        lambda x: PROMPT + (torch.arange(48).view(8, 6) == 47) * x,  # only the last value differs
        lambda x: torch.cat([PROMPT, x]),
        lambda x: PROMPT[: 4 + int(x[0, 0] > 0)] if x.sum() else x,
    ],
)
def test_inputs_that_differ_anywhere(prepare):
    torch.manual_seed(3)
    assert not any(facts.same_inputs for facts in watched(encoder().requires_grad_(False), prepare=prepare))


def test_fixed_inputs_of_what_draws_random_numbers():
    assert watched(encoder(nn.Dropout(0.5)).requires_grad_(False), prepare=lambda x: PROMPT) == []


def test_one_step_is_not_enough():
    assert watched(encoder().requires_grad_(False), steps=1) == []


def test_where_nothing_is_recorded_batches_are_not_looked_at(monkeypatch):
    looked = []
    monkeypatch.setattr(frozen_features, "elements", lambda tensor: looked.append(tensor) or elements(tensor))
    observer = FrozenFeatures(Places(None), ModuleCalls())
    for _ in range(300):
        observer.drawn(torch.randn(8, 6))
    assert len(looked) == 64


@pytest.mark.parametrize(
    ("trainer", "epochs"),
    [
        (SimpleNamespace(state=SimpleNamespace(num_train_epochs=3), args=None), 3),
        (SimpleNamespace(state=SimpleNamespace(fn="fit"), max_epochs=5, max_steps=-1), 5),
        (SimpleNamespace(state=SimpleNamespace(fn="fit"), max_epochs=5, max_steps=90), 0),
        (SimpleNamespace(max_epochs=None, max_steps=-1), 0),
    ],
)
def test_the_epochs_of_a_trainer(trainer, epochs):
    """As transformers and Lightning have them."""
    (facts,) = watched(encoder().requires_grad_(False), trainers=[trainer])
    assert facts.epochs == epochs

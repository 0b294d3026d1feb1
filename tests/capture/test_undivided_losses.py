"""Mean losses of micro-batches: whether anything divides their gradients before the step."""

from collections import Counter

import pytest

pytest.importorskip("torch", reason="the module that is tested imports it")
import torch
from torch import nn

from dptune.capture.injected.observe.undivided_losses import UndividedLosses

PASSES = 4


class Places:
    """One optimizer, and perhaps a scaler and the draws of a loader."""

    engine = None

    def __init__(self, optimizer, scaler=None):
        self.optimizer, self.scaler = optimizer, scaler
        self.draws = Counter()

    def alive(self, kind):
        found = self.optimizer if kind is torch.optim.Optimizer else self.scaler
        return [found] if isinstance(found, kind) else []


def train(
    loss=lambda loss, _: loss,
    *,
    criterion=nn.functional.cross_entropy,
    before_step=lambda parameters: None,
    each=lambda optimizer: None,
    draws=lambda at: (0, 1),
    scaler=None,
    steps=3,
    start=lambda found: {},
    prepare=lambda model: None,
):
    """The facts after steps of four passes; `draws`: by pass, the loader and how many batches it gives."""
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    places = Places(optimizer, scaler)
    observer = UndividedLosses(places)
    observer.begin()
    for _ in range(steps):
        for at in range(PASSES):
            loader, batches = draws(at)
            places.draws[loader] += batches
            found = loss(criterion(model(torch.randn(16, 8)), torch.randint(4, (16,))), at)
            started = start(found)
            observer.before_pass(found, started.get("gradient"))
            found.backward(**started)
            observer.after_pass()
            each(optimizer)
        before_step([*model.parameters()])
        optimizer.step()
        optimizer.zero_grad()
    observer.end()
    return observer.facts()


def divide(parameters, by=PASSES):
    for parameter in parameters:
        parameter.grad /= by


def test_mean_losses_that_nothing_divides():
    (facts,) = train()
    assert (facts.optimizer, facts.passes, facts.steps, facts.undivided, facts.drawn) == ("SGD", 4, 3, 3, True)
    assert "test_undivided_losses.py:" in facts.where
    assert "test_undivided_losses.py:" in facts.step_where


@pytest.mark.parametrize(
    "loss",
    [
        lambda loss, _: loss + 0.1 * loss.square(),
        lambda loss, _: loss.double().view(1).mean(),
        lambda loss, _: 0.9 * loss,  # label smoothing
    ],
)
def test_other_undivided_losses(loss):
    (facts,) = train(loss)
    assert facts.undivided == 3


@pytest.mark.parametrize(
    "loss",
    [
        lambda loss, _: loss / PASSES,
        lambda loss, _: (4 * loss + loss) / PASSES,
        lambda loss, _: loss * 0.25,
        lambda loss, _: (loss / PASSES).mean(),
    ],
)
def test_divided_losses(loss):
    assert [facts.undivided for facts in train(loss)] == [0]


@pytest.mark.parametrize(
    ("reduce", "undivided"),
    [
        (lambda losses: losses.mean(), 3),
        (lambda losses: (losses * torch.ones(16)).mean(), 3),  # weights of samples
        (lambda losses: (losses / PASSES).mean(), 0),
        (lambda losses: (losses.view(4, 4) * 0.25).mean(1).mean(), 0),
        (lambda losses: (losses / PASSES).mean() + (0.1 * losses / PASSES).mean(), 0),
    ],
)
def test_constants_that_multiply_each_loss(reduce, undivided):
    def each(outputs, targets):
        return reduce(nn.functional.cross_entropy(outputs, targets, reduction="none"))

    assert [facts.undivided for facts in train(criterion=each)] == [undivided]


def test_losses_that_are_no_mean():
    def sums(outputs, targets):
        return nn.functional.cross_entropy(outputs, targets, reduction="sum") / 64

    assert [facts.undivided for facts in train(criterion=sums)] == [0]


def test_gradients_that_are_divided_before_the_step():
    assert [facts.undivided for facts in train(before_step=divide)] == [0]


def test_clipped_gradients():
    def clip(parameters):
        nn.utils.clip_grad_norm_(parameters, 0.9 * nn.utils.get_total_norm([each.grad for each in parameters]).item())

    def clip_hard(parameters):
        nn.utils.clip_grad_norm_(parameters, 1e-3)  # as small as divided ones would be

    assert [facts.undivided for facts in train(before_step=clip)] == [3]
    assert [facts.undivided for facts in train(before_step=clip_hard)] == [0]


def test_the_scale_of_a_grad_scaler_is_no_factor():
    class Scaler(torch.amp.GradScaler):
        pass

    scaler = Scaler("cpu", init_scale=1024.0)
    scaler.scale(torch.ones(()))
    unscale = lambda parameters: divide(parameters, 1024.0)  # noqa: E731
    assert [
        facts.undivided for facts in train(lambda loss, _: scaler.scale(loss), scaler=scaler, before_step=unscale)
    ] == [3]
    divided = train(lambda loss, _: scaler.scale(loss / 4), scaler=scaler, before_step=unscale)
    assert [facts.undivided for facts in divided] == [0]


def test_batches():
    """Passes share a batch, or belong to the loaders of several tasks, or there is no loader."""
    assert train(draws=lambda at: (0, at == 0)) == []
    assert train(draws=lambda at: (at % 2, 1)) == []
    (facts,) = train(draws=lambda at: (0, 0))
    assert (facts.undivided, facts.drawn) == (3, False)


@pytest.mark.long
def test_a_pass_that_starts_with_a_smaller_gradient():
    def quarter(found):
        return {"gradient": torch.tensor(1 / PASSES)}

    assert [facts.undivided for facts in train(start=quarter)] == [0]
    assert [facts.undivided for facts in train(start=lambda found: {"gradient": torch.ones(())})] == [3]


def test_hooks_that_divide():
    def hooked(loss, _):
        loss.register_hook(lambda gradient: gradient / PASSES)
        return loss

    assert [facts.undivided for facts in train(hooked)] == [0]
    by_hook = lambda model: [each.register_hook(lambda gradient: gradient / PASSES) for each in model.parameters()]  # noqa: E731
    assert sum(facts.undivided for facts in train(prepare=by_hook)) == 0


def passes_without_a_loader(losses, parameters):
    """The facts of steps whose passes start from these losses, one after another."""
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(parameters, 0.1)
    observer = UndividedLosses(Places(optimizer))
    observer.begin()
    for _ in range(3):
        for loss, keep in losses():
            observer.before_pass(loss, None, keep)
            loss.backward(retain_graph=keep)
            observer.after_pass()
        optimizer.step()
        optimizer.zero_grad()
    observer.end()
    return observer.facts()


def test_tasks_views_and_networks_without_a_loader():
    body, heads = nn.Linear(8, 8), nn.ModuleList([nn.Linear(8, 4), nn.Linear(8, 4)])
    entropy, binary = nn.functional.cross_entropy, nn.functional.binary_cross_entropy_with_logits

    def labels():
        return torch.randint(4, (16,))

    def one_graph():
        features = body(torch.randn(16, 8))
        yield entropy(heads[0](features), labels()), True
        yield entropy(heads[0](features), labels()), False

    def two_heads():
        for head in heads:
            yield entropy(head(body(torch.randn(16, 8))), labels()), False

    def two_views():
        batch, targets = torch.randn(16, 8), labels()
        for view in (batch, batch.flip(1)):
            yield entropy(heads[0](body(view)), targets), False

    def real_and_generated():
        for value in (1.0, 0.0):
            yield binary(heads[0](body(torch.randn(16, 8))), torch.full((16, 4), value)), False

    def micro_batches():
        for _ in range(2):
            yield entropy(heads[0](body(torch.randn(16, 8))), labels()), False

    parameters = [*body.parameters(), *heads.parameters()]
    for losses in (one_graph, two_heads, two_views, real_and_generated):
        assert passes_without_a_loader(losses, parameters) == [], losses.__name__
    (facts,) = passes_without_a_loader(micro_batches, parameters)
    assert (facts.undivided, facts.drawn) == (3, False)


def test_gradients_that_are_cleared_or_changed_between_passes():
    assert train(each=lambda optimizer: optimizer.zero_grad()) == []
    assert train(each=lambda optimizer: divide(optimizer.param_groups[0]["params"], 2)) == []


def test_one_pass_for_each_step():
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    observer = UndividedLosses(Places(optimizer))
    observer.begin()
    for _ in range(3):
        loss = nn.functional.cross_entropy(model(torch.randn(16, 8)), torch.randint(4, (16,)))
        observer.before_pass(loss)
        loss.backward()
        observer.after_pass()
        optimizer.step()
        optimizer.zero_grad()
    observer.end()
    assert observer.facts() == []


def test_passes_from_different_lines():
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    places = Places(optimizer)
    observer = UndividedLosses(places)
    observer.begin()
    for _ in range(3):
        for at in range(2):
            places.draws[0] += 1
            loss = nn.functional.cross_entropy(model(torch.randn(16, 8)), torch.randint(4, (16,)))
            if at:
                observer.before_pass(loss)
            else:
                observer.before_pass(loss)
            loss.backward()
            observer.after_pass()
        optimizer.step()
        optimizer.zero_grad()
    observer.end()
    assert observer.facts() == []


def test_a_step_with_a_closure_is_left_out():
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    observer = UndividedLosses(Places(optimizer))
    observer.begin()

    def closure():
        optimizer.zero_grad()
        for _ in range(2):
            loss = nn.functional.cross_entropy(model(torch.randn(16, 8)), torch.randint(4, (16,)))
            observer.before_pass(loss)
            loss.backward()
            observer.after_pass()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    observer.end()
    assert observer.facts() == []

"""Gradients that are cleared before an optimizer uses them, and those that add up until it does."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dptune.capture.injected.observe.discarded_gradients import DiscardedGradients

SCRIPT = """
    import torch
    from torch import nn

    model = nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(40):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        if step % 4 == 3:
            optimizer.step()
"""
WINDOWS = ("--warmup", "4", "--untraced", "3", "--light", "0", "--detailed", "0", "--continue")


@pytest.mark.records
def test_a_recording_names_the_line_that_clears(profile):
    done = profile(SCRIPT, *WINDOWS)
    assert done.status == 0, done.err
    found = done.facts().discarded_gradients
    assert (found.where, found.backward_where) == ("train.py:8", "train.py:10")
    assert found.passes == [4, 4, 4]
    assert found.discarded == [3, 3, 3]
    assert found.added == [0, 0, 0]
    assert found.step_share == 1


class Script:
    """A model of a script and the observer, which is told of passes as the meters do."""

    def __init__(self, *optimizers):
        self.optimizers = optimizers
        self.engine = None
        self.observer = DiscardedGradients(self)

    def alive(self, kind):
        return list(self.optimizers)

    def backward(self, loss, **options):
        self.observer.before_pass(loss)
        loss.backward(**options)
        self.observer.after_pass()

    def seen(self, step, steps=3):
        clear = nn.Module.zero_grad, torch.optim.Optimizer.zero_grad, torch.amp.GradScaler.step
        self.observer.begin()
        for _ in range(steps):
            step(self)
        self.observer.end()
        assert (nn.Module.zero_grad, torch.optim.Optimizer.zero_grad, torch.amp.GradScaler.step) == clear
        return self.observer.facts()


def layer():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))


def loss_of(model):
    return model(torch.randn(4, 8)).square().mean()


def sgd(model, lr=0.1):
    return torch.optim.SGD(model.parameters(), lr=lr)


def clear_by_optimizer(model, optimizer):
    optimizer.zero_grad()


def clear_to_zero(model, optimizer):
    optimizer.zero_grad(set_to_none=False)


def clear_by_model(model, optimizer):
    model.zero_grad()


def clear_by_hand(model, optimizer):
    for parameter in model.parameters():
        parameter.grad = None


@pytest.mark.parametrize("clear", [clear_by_optimizer, clear_to_zero, clear_by_model, clear_by_hand])
@pytest.mark.parametrize("clip", [False, True])
def test_only_the_last_of_four_passes_counts(clear, clip):
    model = layer()
    optimizer = sgd(model)

    def step(script):
        for _ in range(4):
            clear(model, optimizer)
            script.backward(loss_of(model) / 4)
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()

    found = Script(optimizer).seen(step)
    assert (found.passes, found.discarded) == ([4] * 3, [3] * 3)
    assert found.usual == (4, 3)
    assert (found.where is None) == (clear is clear_by_hand)


@pytest.mark.parametrize("clear", [clear_by_optimizer, clear_by_model, clear_by_hand])
def test_a_step_without_gradients(clear):
    model = layer()
    optimizer = sgd(model)

    def step(script):
        script.backward(loss_of(model))
        clear(model, optimizer)
        optimizer.step()

    found = Script(optimizer).seen(step)
    assert found.discarded in ([1, 1, 1], [0, 0, 0])
    assert (found.discarded == [1, 1, 1]) == (clear is not clear_by_hand)  # which only the next pass shows


def accumulated(script, model, optimizer):
    for _ in range(4):
        script.backward(loss_of(model))
    optimizer.step()
    optimizer.zero_grad()


def cleared_twice(script, model, optimizer):
    optimizer.zero_grad()
    model.zero_grad()
    script.backward(loss_of(model))
    optimizer.step()
    model.zero_grad()


def of_several_losses(script, model, optimizer):
    """Gradients that are merged by hand, as in PCGrad."""
    merged = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for _ in range(3):
        optimizer.zero_grad()
        script.backward(loss_of(model))
        for total, parameter in zip(merged, model.parameters(), strict=True):
            total += parameter.grad
    for total, parameter in zip(merged, model.parameters(), strict=True):
        parameter.grad.copy_(total)
    optimizer.step()


def sharpness_aware(script, model, optimizer):
    for first in (True, False):
        script.backward(loss_of(model))
        if first:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.05 * parameter.grad / parameter.grad.norm())
            optimizer.zero_grad()
    optimizer.step()
    optimizer.zero_grad()


def inner_loop(script, model, optimizer):
    """Reptile: steps by hand, through `.data`."""
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for _ in range(3):
        model.zero_grad()
        script.backward(loss_of(model))
        for parameter in model.parameters():
            parameter.data -= 0.1 * parameter.grad
    for parameter, start in zip(model.parameters(), before, strict=True):
        parameter.grad = start - parameter.detach()
        parameter.data.copy_(start)
    optimizer.step()


def attacked(script, model, optimizer):
    """A pass for the gradient of the inputs, at a line of its own."""
    inputs = torch.randn(4, 8, requires_grad=True)
    script.backward(model(inputs).square().mean())
    model.zero_grad()
    script.backward(model(inputs + inputs.grad.sign()).square().mean())
    optimizer.step()
    optimizer.zero_grad()


def penalised(script, model, optimizer):
    inputs = torch.randn(4, 8, requires_grad=True)
    loss = model(inputs).square().mean()
    (slope,) = torch.autograd.grad(loss, inputs, create_graph=True)
    optimizer.zero_grad()
    script.backward(loss + slope.square().sum())
    optimizer.step()


def with_closure(script, model, optimizer):
    def closure():
        optimizer.zero_grad()
        loss = loss_of(model)
        script.backward(loss)
        return loss

    for _ in range(3):
        optimizer.step(closure)


def with_scaler(script, model, optimizer):
    """One that skips each step."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**100)
    for _ in range(2):
        script.backward(scaler.scale(loss_of(model)) * 1e10)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def clipped_each_time(script, model, optimizer):
    for _ in range(2):
        script.backward(loss_of(model))
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    optimizer.step()
    optimizer.zero_grad()


def clipped_by_data(script, model, optimizer):
    for _ in range(2):
        script.backward(loss_of(model))
        for parameter in model.parameters():
            parameter.grad.data.clamp_(-1e-6, 1e-6)
    optimizer.step()
    optimizer.zero_grad()


def perturbed_by_data(script, model, optimizer):
    """A second pass at other weights, whose gradients are added to those of the first."""
    for distance in (0.1, -0.1):
        script.backward(loss_of(model))
        for parameter in model.parameters():
            parameter.data += distance
    optimizer.step()
    optimizer.zero_grad()


def of_one_forward_pass(script, model, optimizer):
    shared = model[0](torch.randn(4, 8))
    for head in (model[1], model[2]):
        script.backward(head(shared).square().mean() if head is model[1] else head(shared).mean(), retain_graph=True)
    optimizer.step()
    optimizer.zero_grad()


def clipped_at_the_end(script, model, optimizer):
    for _ in range(3):
        script.backward(loss_of(model) / 3)
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)


@pytest.mark.parametrize(
    ("step", "passes", "added"),
    [
        (accumulated, 4, 4),
        (clipped_at_the_end, 3, 3),
        (clipped_each_time, 2, 0),
        (clipped_by_data, 2, 0),
        (sharpness_aware, 2, 0),
        (perturbed_by_data, 2, 0),
        (of_one_forward_pass, 2, 0),
    ],
)
def test_passes_add_up_if_each_has_a_forward_pass_and_nothing_changes_in_between(step, passes, added):
    model = layer()
    optimizer = sgd(model)
    found = Script(optimizer).seen(lambda script: step(script, model, optimizer))
    assert found.passes == [passes] * 3
    assert found.added == [added] * 3
    assert found.usually_added == added


@pytest.mark.parametrize(
    "step",
    [
        *(accumulated, cleared_twice, of_several_losses, sharpness_aware, inner_loop, attacked, penalised),
        *(with_closure, with_scaler),
    ],
)
def test_quiet(step):
    model = layer()
    optimizer = sgd(model)
    found = Script(optimizer).seen(lambda script: step(script, model, optimizer))
    assert found is None or not any(found.discarded)


def test_lbfgs_runs_passes_inside_its_step():
    model = layer()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)
    found = Script(optimizer).seen(lambda script: with_closure(script, model, optimizer))
    assert found is None or not any(found.discarded)


def test_passes_through_different_models_do_not_add_up():
    """An actor and a critic: without the synchronization of its only pass, the actor's gradients would stay local."""
    actor, critic = layer(), layer()
    of_actor, of_critic = sgd(actor), sgd(critic)

    def step(script):
        for model in (actor, critic):
            script.backward(loss_of(model))
        for optimizer in (of_actor, of_critic):
            optimizer.step()
            optimizer.zero_grad()

    found = Script(of_actor, of_critic).seen(step)
    assert (found.passes, found.added) == ([2] * 3, [0] * 3)


def test_passes_of_a_reentrant_checkpoint_are_part_of_the_pass_around_them(monkeypatch):
    model = layer()
    optimizer = sgd(model)
    inner = torch.autograd.backward

    def metered(script, *args, **kwargs):
        script.observer.before_pass(args[0])
        inner(*args, **kwargs)
        script.observer.after_pass()

    def step(script):
        monkeypatch.setattr(torch.autograd, "backward", lambda *args, **kwargs: metered(script, *args, **kwargs))
        rows = torch.randn(4, 8, requires_grad=True)
        for block in model:
            rows = checkpoint(block, rows, use_reentrant=True)
        rows.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    found = Script(optimizer).seen(step)
    assert (found.passes, found.added) == ([1] * 3, [1] * 3)


@pytest.mark.parametrize("detached", [True, False])
def test_networks_that_train_in_turn(detached):
    """What the generator's pass leaves in the discriminator is cleared, and was used for the generator."""
    makes, judges = layer(), layer()
    of_maker, of_judge = sgd(makes), sgd(judges)

    def step(script):
        made = makes(torch.randn(4, 8))
        of_judge.zero_grad()
        script.backward(judges(made.detach() if detached else made).square().mean(), retain_graph=True)
        of_judge.step()
        of_maker.zero_grad()
        script.backward(-judges(makes(torch.randn(4, 8))).mean())
        of_maker.step()

    found = Script(of_maker, of_judge).seen(step)
    assert len(found.passes) == 6
    assert not any(found.discarded)


def test_a_step_of_one_network_uses_a_pass_through_both():
    makes, judges = layer(), layer()
    of_maker, of_judge = sgd(makes), sgd(judges)

    def step(script):
        for optimizer, cleared in ((of_judge, of_judge), (of_maker, of_judge)):
            script.backward(judges(makes(torch.randn(4, 8))).mean())
            if optimizer is of_maker:
                cleared.zero_grad()
            optimizer.step()
        of_maker.zero_grad()

    found = Script(of_maker, of_judge).seen(step)
    assert not any(found.discarded)


def test_results_and_random_numbers_are_the_same_with_the_observer_and_nothing_is_kept_alive():
    def trained(watch):
        model = layer()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

        def step(script):
            for _ in range(2):
                optimizer.zero_grad()
                script.backward(loss_of(model))
            optimizer.step()

        script = Script(*([optimizer] if watch else []))
        assert (script.seen(step) is not None) == watch
        return [parameter.detach() for parameter in model.parameters()], torch.get_rng_state()

    (with_it, state), (without, expected) = trained(True), trained(False)
    assert all(torch.equal(first, second) for first, second in zip(with_it, without, strict=True))
    assert torch.equal(state, expected)

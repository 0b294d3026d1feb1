"""16-bit parameters that a step leaves as they were, although they have gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dptune.capture.injected.observe.lost_updates import LostUpdates

SCRIPT = """
    import torch
    from torch import nn

    model = nn.Linear(64, 64).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    for step in range(8):
        model(torch.randn(4, 64, dtype=torch.bfloat16)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
WINDOWS = ("--warmup", "3", "--untraced", "3", "--light", "0", "--detailed", "0", "--continue")


@pytest.mark.records
def test_a_recording_has_the_counts_of_its_warm_up_steps(profile):
    done = profile(SCRIPT, *WINDOWS)
    assert done.status == 0, done.err
    (facts,) = done.facts().lost_updates
    assert (facts.optimizer, facts.where, facts.dtype) == ("AdamW", "train.py:6", "bfloat16")
    assert len(facts.sampled) == 2
    assert facts.least_share > 0.9


class Made:
    """The places of a script with one optimizer."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def alive(self, kind):
        return [self.optimizer]

    def line(self, thing):
        return "train.py:9"


class Rounding(torch.optim.SGD):
    """An optimizer of the script, which may keep what rounding loses."""


def parameter(value, count=1000, dtype=torch.bfloat16):
    return nn.Parameter(torch.full((count,), value, dtype=dtype))


def seen(optimizer, gradients, steps=3, between=lambda step: None):
    """What is seen of steps with these gradients, in the order of the parameters."""
    watched = LostUpdates(Made(optimizer))
    watched.begin()
    for step in range(steps):
        between(step)
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        for one, gradient in zip(parameters, gradients, strict=True):
            one.grad = None if gradient is None else torch.full_like(one, gradient)
        optimizer.step()
        watched.stepped(optimizer)
    watched.end()
    return watched.facts()


def test_updates_below_a_512th_of_a_weight_are_lost():
    """Next to 1 bfloat16 has 1 - 2^-8: a step of 2^-10 rounds back, one of 2^-7 does not; float32 is not seen."""
    lost, kept, single = parameter(1.0), parameter(1.0, 3000), parameter(1.0, dtype=torch.float32)
    optimizer = torch.optim.SGD([lost, kept, single], lr=1.0)
    (facts,) = seen(optimizer, [2**-10, 2**-7, 2**-30])
    assert (facts.optimizer, facts.where, facts.dtype, facts.parameters) == ("SGD", "train.py:9", "bfloat16", 4000)
    assert facts.learning_rate == 1.0
    assert facts.sampled == [4000] * 3
    assert facts.unchanged == [1000] * 3
    assert torch.equal(lost.detach(), torch.ones(1000, dtype=torch.bfloat16))


def test_float16_keeps_what_bfloat16_loses():
    (facts,) = seen(torch.optim.SGD([parameter(1.0, dtype=torch.float16)], lr=1.0), [2**-10])
    assert (facts.dtype, facts.unchanged) == ("float16", [0, 0, 0])


def test_elements_without_a_gradient_are_not_counted():
    one, frozen, unused = parameter(1.0), parameter(1.0), parameter(1.0)
    optimizer = torch.optim.SGD([one, frozen, unused], lr=1.0)
    frozen.requires_grad_(False)
    (facts,) = seen(optimizer, [2**-10, None, None])
    assert facts.sampled == facts.unchanged
    assert facts.parameters == 2000
    assert seen(torch.optim.SGD([parameter(1.0)], lr=1.0), [0.0]) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_quiet_for_wider_weights(dtype):
    assert seen(torch.optim.SGD([parameter(1.0, dtype=dtype)], lr=1.0), [2**-10]) == []


def test_optimizers_that_are_not_torchs_may_round_in_another_way():
    assert seen(Rounding([parameter(1.0)], lr=1.0), [2**-10]) == []


def test_steps_of_a_warm_up_are_left_out():
    optimizer = torch.optim.SGD([parameter(1.0)], lr=1.0)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 6))
    (facts,) = seen(optimizer, [2**-10], steps=5, between=lambda step: rates.step() if step else None)
    assert len(facts.unchanged) == 3  # at 3, 4 and 5 sixths
    optimizer = torch.optim.SGD([parameter(1.0)], lr=1.0)
    torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=100)
    assert seen(optimizer, [2**-10]) == []
    optimizer = torch.optim.SGD([parameter(1.0)], lr=1.0)
    optimizer.param_groups[0]["lr"] = 0.01  # by the script
    assert seen(optimizer, [2**-10]) == []


def test_the_sample_is_bounded_and_spread_over_parameters_by_their_size():
    """A quarter of the elements changes: so does a quarter of the sample."""
    small, large = parameter(1.0, 250_000), nn.Parameter(torch.ones(750, 1000, dtype=torch.bfloat16))
    (facts,) = seen(torch.optim.SGD([small, large], lr=1.0), [2**-7, 2**-10])
    assert facts.sampled == [4096] * 3
    assert facts.unchanged == [3072] * 3


def test_a_step_is_the_same_with_and_without_the_observer():
    def trained(watch):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(288, 4)).to(torch.bfloat16)
        model = model.to(memory_format=torch.channels_last)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        watched = LostUpdates(Made(optimizer))
        if watch:
            watched.begin()
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(2, 3, 8, 8, dtype=torch.bfloat16)).square().mean().backward()
            optimizer.step()
            watched.stepped(optimizer)
        watched.end()
        assert bool(watched.facts()) == watch
        return [one.detach() for one in model.parameters()], torch.get_rng_state()

    (with_it, state), (without, expected) = trained(True), trained(False)
    assert all(torch.equal(one, other) for one, other in zip(with_it, without, strict=True))
    assert torch.equal(state, expected)


def test_a_parameter_that_is_gone_is_no_error():
    optimizer = torch.optim.SGD([parameter(1.0)], lr=1.0)
    watched = LostUpdates(Made(optimizer))
    watched.begin()
    optimizer.param_groups[0]["params"] = []
    watched.stepped(optimizer)
    watched.end()
    assert watched.facts() == []

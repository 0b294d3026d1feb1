"""What the graph of a loss shows of fp16, and of factors before the backward pass."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dptune.capture.injected.observe.loss_scaling import LossScaling

from .conftest import SHORT


class Half:
    """The places of a script that has entered fp16 autocast."""

    autocast = "cpu:float16"


MODEL = nn.Linear(8, 4)
TEACHER = nn.Linear(8, 4).requires_grad_(False)
X, Y = torch.randn(16, 8), torch.randint(4, (16,))


def cast(model):
    with torch.autocast("cpu", torch.float16):
        return model(X)


def entropy():
    return nn.functional.cross_entropy(cast(MODEL), Y)


def found(make, gradient=None, places=Half):
    observer = LossScaling(places)
    observer.begin()
    for _ in range(6):
        observer.before_pass(make(), gradient)
    observer.end()
    observer.before_pass(make(), gradient)
    return observer.facts()


@pytest.mark.parametrize(
    ("scale", "factor"),
    [
        (lambda loss: loss, 1),
        (lambda loss: loss * 32, 32),
        (lambda loss: torch.tensor(32.0) * loss, 32),
        (lambda loss: loss / 0.03125, 32),
        (lambda loss: loss * 32 / 4, 8),  # accumulates four passes
        (lambda loss: 32 * (loss + 0.01 * loss.square()), 32),
        (lambda loss: (32 * loss).double().view(1).mean(), 32),
        (lambda loss: torch.stack([loss * 16, loss * 2]).sum(), 16),
        (lambda loss: loss / 4, 0.25),
        (lambda loss: loss * loss, 1),
        (lambda loss: 1 / loss, 1),
        (lambda loss: loss * torch.full((3,), 32.0).sum(), 96),
        (lambda loss: (loss * torch.full((3,), 32.0)).sum(), 1),  # weights, and no single factor
        (lambda loss: (loss * 32).exp(), 1),  # part of the loss
    ],
)
def test_factors(scale, factor):
    facts = found(lambda: scale(entropy()))
    assert (facts.passes, facts.half_passes) == (4, 4)
    assert facts.factor == pytest.approx(factor)


def test_a_gradient_given_to_the_pass_is_a_factor():
    assert found(entropy, torch.tensor(64.0)).factor == 64
    assert found(lambda: [2 * entropy()], [torch.tensor(64.0)]).factor == 128
    assert found(lambda: [entropy()], [None]).factor == 1


def test_a_model_that_is_not_trained_is_not_in_the_graph():
    facts = found(lambda: nn.functional.mse_loss(MODEL(X), cast(TEACHER).float()))
    assert (facts.passes, facts.half_passes, facts.factor) == (4, 0, 1.0)


def test_only_after_fp16_autocast():
    class Brain:
        autocast = "cpu:bfloat16"

    assert found(entropy, places=Brain) is None
    assert found(lambda: "no tensor") is None


SCRIPT = """
    import torch
    from torch import nn

    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(20):
        x = torch.randn(16, 8)
        with torch.autocast("cpu", torch.float16):
            loss = 32 * model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.records
def test_a_recording_of_a_script_that_scales_by_itself(profile):
    done = profile(SCRIPT, *SHORT, "--continue", "--warmup", "6")
    assert done.status == 0, done.err
    facts = done.facts()
    assert facts.loss_scaling == type(facts.loss_scaling)(passes=4, half_passes=4, factor=32.0)
    assert (facts.autocast, facts.grad_scaler) == ("cpu:float16", False)

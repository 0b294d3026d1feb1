"""Results with gradients that nothing reads: real operators, in steps of plain torch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dptune.capture.injected.observe.same_results import SameResults
from dptune.capture.injected.observe.unread_results import UnreadResults


class Uncompiled:
    compiled = ()


class Model(nn.Module):
    """With a loss of its own where it is given labels, and a second head."""

    def __init__(self):
        super().__init__()
        self.trunk, self.head, self.other = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x, labels=None, other=False):
        hidden = self.trunk(x).relu()
        logits = self.head(hidden)
        second = self.other(hidden) if other else None
        loss = None if labels is None else nn.functional.cross_entropy(logits.float().view(-1, 4), labels)
        return {"loss": loss, "logits": logits, "second": second}


LABELS = torch.randint(4, (32,))


def found(step, steps=4):
    """What is found in steps that compute a loss."""
    torch.manual_seed(0)
    model, unread = Model(), UnreadResults()
    observer = SameResults(Uncompiled(), others=(unread,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    observer.begin()
    try:
        for _ in range(steps):
            loss = step(model, torch.rand(32, 8))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            observer.ticked()
    finally:
        observer.end()
    return unread.facts()


def of_logits(logits):
    return nn.functional.cross_entropy(logits, LABELS, weight=torch.ones(4))


def test_a_loss_of_the_model_that_is_not_used():
    (facts,) = found(lambda model, x: of_logits(model(x, LABELS)["logits"]))
    assert facts.function.startswith("Model.forward (tests/capture/test_unread_results.py:")
    assert set(facts.operators) == {"cross_entropy", "view"}
    assert (facts.calls, facts.library) == (2, "")
    assert len(facts.step_ns) == len(facts.again_ns) == 2
    assert 0 < facts.step_share < facts.forward_part < 1


def test_a_head_that_no_loss_takes():
    (facts,) = found(lambda model, x: of_logits(model(x, other=True)["logits"]))
    assert facts.operators == ["linear"]


def test_a_chain_in_place():
    def step(model, x):
        penalty = model.other(model.trunk(x)).square()
        penalty *= 2
        penalty = penalty.sum()
        return of_logits(model(x)["logits"])

    (facts,) = found(step)
    assert facts.calls == 5


KEPT = []


def kept(model, x):
    outputs = model(x, LABELS)
    KEPT.append(outputs["loss"])
    return of_logits(outputs["logits"])


def detached(model, x):
    fake = model.other(model.trunk(x))
    return of_logits(model(x + fake.detach().mean())["logits"])


def logged(model, x):
    outputs = model(x, LABELS)
    outputs["loss"].item()
    return of_logits(outputs["logits"])


def counted(model, x):
    outputs = model(x, other=True)
    assert outputs["second"].softmax(1).argmax(1).shape == (32,)
    return of_logits(outputs["logits"])


def without_gradients(model, x):
    with torch.no_grad():
        model(x, LABELS)
    return of_logits(model(x)["logits"])


def recomputed(model, x):
    trunk = torch.utils.checkpoint.checkpoint(lambda given: model.trunk(given).relu(), x, use_reentrant=False)
    return of_logits(model.head(trunk))


def penalized(model, x):
    x = x.requires_grad_()
    outputs = model(x)["logits"]
    (slope,) = torch.autograd.grad(outputs.sum(), x, create_graph=True)
    return of_logits(outputs) + slope.square().mean()


class Doubled(torch.autograd.Function):
    """What no mode sees: the graph alone shows that its input is used."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


@pytest.mark.parametrize(
    "step",
    [
        lambda model, x: model(x, LABELS)["loss"],
        lambda model, x: model(x, LABELS)["loss"] + of_logits(model.other(model.trunk(x))),
        lambda model, x: of_logits(Doubled.apply(model(x)["logits"])),
        *(kept, detached, logged, counted, without_gradients, recomputed, penalized),
    ],
)
def test_what_is_used(step):
    assert found(step) == []


def test_gradients_of_a_later_step():
    """Losses of two steps, one backward pass."""
    losses = []

    def step(model, x):
        losses.append(model.trunk(x).mean())
        if len(losses) % 2:
            return of_logits(model(x)["logits"])
        return losses.pop() + losses.pop()

    assert found(step) == []


def test_what_only_one_step_computes():
    steps = []

    def step(model, x):
        steps.append(x)
        return of_logits(model(x, LABELS if len(steps) == 2 else None)["logits"])

    assert found(step) == []


LIBRARY = """
from torch import nn

class Head(nn.Module):
    def forward(self, logits, labels):
        return loss_of(logits, labels)

def loss_of(logits, labels):
    return nn.functional.cross_entropy(logits, labels)
"""


@pytest.mark.parametrize(("called", "name"), [("Head()", "Head.forward"), ("loss_of", "loss_of")])
def test_the_function_of_a_library(called, name):
    """An installed package is recognized by its file."""
    package = {}
    exec(compile(LIBRARY, "/usr/lib/python3/site-packages/words/heads.py", "exec"), package)
    library = eval(called, package)

    def step(model, x):
        logits = model(x)["logits"]
        library(logits, LABELS)
        return of_logits(logits)

    (facts,) = found(step)
    assert facts.library in (f"words.{name}", f"words.{name.rpartition('.')[2]}")  # before Python 3.11
    assert "step (tests/capture/test_unread_results.py:" in facts.function
    assert facts.operators == ["cross_entropy"]

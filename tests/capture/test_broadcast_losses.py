"""Losses that compare each prediction with each target."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as scripts have it
from torch import nn

from dptune.capture.injected.observe.broadcast_losses import BroadcastLosses

SCRIPT = """
    import torch
    from torch import nn

    def squared_error(found, wanted):
        return ((found - wanted) ** 2).mean()

    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(10):
        loss = squared_error(model(torch.randn(6, 8)), torch.randn(6))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("restored", "__sub__" not in vars(torch.Tensor), torch.sub.__name__)
"""
WINDOWS = ("--warmup", "4", "--untraced", "3", "--light", "0", "--detailed", "0", "--continue")


@pytest.mark.records
def test_a_recording_names_the_line_and_both_shapes(profile):
    done = profile(SCRIPT, *WINDOWS)
    assert done.status == 0, done.err
    (found,) = done.facts().broadcast_losses
    assert (found.operator, found.where) == ("sub", "train.py:6")
    assert (found.predictions, found.targets) == ([6, 1], [6])
    assert found.passes == found.passes_seen == 2
    assert "restored True sub" in done.out


class Uncompiled:
    compiled = ()


MODEL = nn.Linear(3, 1)
X, Y = torch.randn(6, 3), torch.randn(6)
WEIGHTS = torch.rand(6)
PLAN = torch.rand(6, 6)


def found(loss, passes=3):
    observer = BroadcastLosses(Uncompiled())
    observer.begin()
    for _ in range(passes):
        observer.before_pass(loss())
        observer.after_pass()
    observer.end()
    assert not {"__sub__", "sub", "__mul__", "mul"} & set(vars(torch.Tensor))
    return observer.facts()


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize(
    ("loss", "operator"),
    [
        (lambda: ((MODEL(X) - Y) ** 2).mean(), "sub"),
        (lambda: (Y - MODEL(X)).square().sum() / 6, "sub"),
        (lambda: torch.abs(MODEL(X) - Y).mean() + MODEL.weight.square().sum(), "sub"),
        (lambda: torch.sub(MODEL(X), Y).pow(2).mean().sqrt(), "sub"),
        (lambda: MODEL(X).sub(Y).pow(2).sum(1).mean(), "sub"),
        (lambda: (WEIGHTS * (MODEL(X) - Y) ** 2).mean(), "sub"),
        (lambda: ((MODEL(X).squeeze(1) - Y[:, None]) ** 2).mean(), "sub"),
        (lambda: ((MODEL(X).view(-1) - Y.view(-1, 1)) ** 2).mean(), "sub"),
        (lambda: -(MODEL(X).exp() * Y).mean(), "mul"),
        (lambda: -torch.min(MODEL(X).exp() * Y, MODEL(X).exp().clamp(0.8, 1.2) * Y).mean(), "mul"),
        (lambda: -(Y * F.logsigmoid(MODEL(X)) + (1 - Y) * F.logsigmoid(-MODEL(X))).mean(), "mul"),
        (lambda: -torch.distributions.Normal(MODEL(X), 1.0).log_prob(Y).mean(), "sub"),
        (lambda: F.mse_loss(MODEL(X), Y), "mse_loss"),
        (lambda: F.mse_loss(MODEL(X), Y, reduction="none").mean(), "mse_loss"),
        (lambda: nn.MSELoss()(MODEL(X)[:, 0], Y[:, None]), "mse_loss"),
        (lambda: F.l1_loss(MODEL(X), Y), "l1_loss"),
        (lambda: F.smooth_l1_loss(MODEL(X), Y), "smooth_l1_loss"),
        (lambda: F.huber_loss(input=MODEL(X), target=Y), "huber_loss"),
    ],
)
def test_found(loss, operator):
    facts = found(loss)
    assert {one.operator for one in facts} == {operator}
    assert {(*one.predictions, *one.targets) for one in facts} <= {(6, 1, 6), (6, 6, 1)}
    assert all(one.passes >= one.passes_seen == 2 for one in facts)
    assert facts[0].where.startswith("tests/capture/test_broadcast_losses.py:")


def contrastive():
    outputs = MODEL.weight @ X.T
    codes = F.normalize(X * MODEL.weight, dim=1)
    return F.cross_entropy(codes @ codes.T + outputs.mean(), torch.arange(6))


@pytest.mark.parametrize(
    "loss",
    [
        lambda: ((MODEL(X).squeeze(-1) - Y) ** 2).mean(),
        lambda: ((MODEL(X) - Y[:, None]) ** 2).mean(),
        lambda: F.mse_loss(MODEL(X)[:, 0], Y),
        lambda: ((MODEL(X)[:, 0][:, None] - Y) ** 2).mean(),  # meant
        lambda: ((MODEL(X)[:, 0].unsqueeze(1) - Y[None]) ** 2).mean(),
        lambda: ((MODEL(X) - Y[None]) ** 2).mean(),  # (B, 1) and (1, B)
        lambda: ((MODEL(X) - MODEL(X).T) ** 2).mean(),  # pairs of predictions
        lambda: ((MODEL(X) - MODEL(X)[:, 0]) ** 2).mean(),
        lambda: (PLAN * (MODEL(X) - Y) ** 2).sum(),  # optimal transport
        lambda: torch.exp(-((MODEL(X) - Y) ** 2)).mean(),  # a kernel
        lambda: torch.relu(1 - (MODEL(X) - Y)).mean(),  # a margin of pairs
        lambda: (MODEL(X) - Y).softmax(1).square().mean(),
        lambda: ((MODEL(X) - PLAN) ** 2).mean(),
        lambda: ((MODEL(X[:1]) - Y[:1]) ** 2).mean(),  # a single sample
        lambda: ((MODEL(X) - Y.mean()) ** 2).mean(),
        lambda: ((X @ MODEL.weight.T.expand(3, 6) - Y) ** 2).mean(),
        lambda: (MODEL(X).expand(6, 6) - Y).square().mean(),
        contrastive,
    ],
)
def test_quiet(loss):
    assert found(loss) == []


def test_results_are_the_same_and_nothing_is_wrapped_where_nothing_is_suspected():
    observer = BroadcastLosses(Uncompiled())
    observer.begin()
    observer.before_pass(((MODEL(X)[:, 0] - Y) ** 2).mean())
    observer.after_pass()
    assert "__sub__" not in vars(torch.Tensor)
    loss = ((MODEL(X) - Y) ** 2).mean()
    observer.before_pass(loss)
    observer.after_pass()
    assert "__sub__" in vars(torch.Tensor)
    assert torch.equal(((MODEL(X) - Y) ** 2).mean(), loss)
    with pytest.raises(TypeError):
        MODEL(X) - "text"
    assert MODEL(X).__sub__("text") is NotImplemented
    observer.end()
    assert "__sub__" not in vars(torch.Tensor)


def test_compiled_scripts_are_left_alone():
    observer = BroadcastLosses(type("Compiled", (), {"compiled": ["train.py:3"]}))
    observer.begin()
    observer.before_pass(((MODEL(X) - Y) ** 2).mean())
    observer.after_pass()
    assert "__sub__" not in vars(torch.Tensor)
    assert observer.facts() == []

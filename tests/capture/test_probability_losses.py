"""Losses that expect logits or log-probabilities and are given other outputs."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as scripts have it
from torch import nn

from dptune.capture.injected.observe.probability_losses import ProbabilityLosses

SCRIPT = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 5)

        def forward(self, x):
            return torch.softmax(self.layer(x), dim=1)

    model, criterion = Net(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10):
        loss = criterion(model(torch.randn(4, 8)), torch.arange(4))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("anomaly mode", torch.is_anomaly_enabled())
"""
WINDOWS = ("--warmup", "4", "--untraced", "3", "--light", "0", "--detailed", "0", "--continue")


@pytest.mark.records
def test_a_recording_names_the_lines_of_the_softmax_and_the_loss(profile):
    done = profile(SCRIPT, *WINDOWS)
    assert done.status == 0, done.err
    (found,) = done.facts().probability_losses
    assert (found.applied, found.loss, found.classes) == ("softmax", "log_softmax", 5)
    assert (found.where, found.loss_where) == ("train.py:11", "train.py:16")
    assert found.passes == found.passes_seen == 3
    assert "anomaly mode False" in done.out


X = torch.randn(6, 4, 3, requires_grad=True)
WEIGHT, BIAS = torch.randn(5, 4, requires_grad=True), torch.randn(5, requires_grad=True)
TARGETS = torch.zeros(6, 3, dtype=torch.long)


def normalized_apart(outputs):
    """The cross entropy in two terms."""
    return F.nll_loss(outputs, TARGETS[:, 0]) + outputs.logsumexp(1).mean()


def found(loss, passes=1):
    observer = ProbabilityLosses()
    observer.begin()
    for _ in range(passes):
        observer.before_pass(loss())
        observer.after_pass()
    observer.end()
    return observer.facts()


@pytest.mark.parametrize(
    ("loss", "applied", "function", "classes"),
    [
        (lambda: F.cross_entropy(X.softmax(1), TARGETS), "softmax", "log_softmax", 4),
        (lambda: F.cross_entropy(X.softmax(-2), TARGETS, label_smoothing=0.1) / 4, "softmax", "log_softmax", 4),
        (lambda: F.cross_entropy(X.softmax(-1).flatten(0, 1), torch.zeros(24).long()), "softmax", "log_softmax", 3),
        (
            lambda: F.cross_entropy(X.softmax(-1).transpose(1, 2), TARGETS[:, :1].expand(6, 4)),
            "softmax",
            "log_softmax",
            3,
        ),
        (
            lambda: F.cross_entropy(X.softmax(1).permute(0, 2, 1).reshape(-1, 4), TARGETS.view(-1)),
            "softmax",
            "log_softmax",
            4,
        ),
        (
            lambda: F.cross_entropy(X.softmax(-1)[:, :-1].reshape(-1, 3), torch.zeros(18).long()),
            "softmax",
            "log_softmax",
            3,
        ),
        (lambda: F.cross_entropy(X.softmax(-1)[:, 0], TARGETS[:, 0]), "softmax", "log_softmax", 3),
        (
            lambda: F.cross_entropy(X.softmax(-1)[X[..., 0].detach() > -9], torch.zeros(24).long()),
            "softmax",
            "log_softmax",
            3,
        ),
        (lambda: F.cross_entropy(X[..., 0].sigmoid(), TARGETS[:, 0]), "sigmoid", "log_softmax", 4),
        (
            lambda: F.kl_div(F.log_softmax(X.softmax(1), 1), X.detach().softmax(1), reduction="sum"),
            "softmax",
            "log_softmax",
            4,
        ),
        (
            lambda: F.binary_cross_entropy_with_logits(X.sigmoid().squeeze(), torch.zeros_like(X)),
            "sigmoid",
            "binary_cross_entropy_with_logits",
            None,
        ),
        (lambda: F.nll_loss(X.softmax(1), TARGETS), "softmax", "nll_loss", None),
        (lambda: F.nll_loss(X[..., 0].sigmoid(), TARGETS[:, 0]), "sigmoid", "nll_loss", None),
        (lambda: F.nll_loss(F.linear(X[..., 0], WEIGHT, BIAS), TARGETS[:, 0]), "layer", "nll_loss", None),
        (
            lambda: F.nll_loss(F.linear(X, WEIGHT[:, :3]).transpose(1, 2), TARGETS[:, :1].expand(6, 4)),
            "layer",
            "nll_loss",
            None,
        ),
        (lambda: F.nll_loss(F.conv1d(X, WEIGHT[..., None]), TARGETS) / 2, "layer", "nll_loss", None),
        (lambda: F.multilabel_soft_margin_loss(X[..., 0].sigmoid(), torch.zeros(6, 4)), "sigmoid", "logsigmoid", None),
    ],
)
def test_found_in_any_layout(loss, applied, function, classes):
    (facts,) = found(loss)
    assert (facts.applied, facts.loss, facts.classes) == (applied, function, classes)
    assert (facts.passes, facts.passes_seen) == (1, 1)


@pytest.mark.parametrize(
    "loss",
    [
        lambda: F.cross_entropy(X, TARGETS),
        lambda: F.cross_entropy(F.log_softmax(X, 1), TARGETS),  # the same again
        lambda: F.nll_loss(X.softmax(1).log(), TARGETS),
        lambda: F.nll_loss(F.linear(X[..., 0], WEIGHT).log_softmax(1), TARGETS[:, 0]),
        lambda: F.nll_loss(F.linear(X[..., 0], WEIGHT) - 1, TARGETS[:, 0]),  # computed further
        lambda: normalized_apart(F.linear(X[..., 0], WEIGHT)),
        lambda: F.cross_entropy(X.softmax(1) / 0.07, TARGETS),  # logits of a limited size
        lambda: F.cross_entropy(X.softmax(2), TARGETS),  # over places, as attention
        lambda: F.cross_entropy(X.softmax(1).flatten(1), torch.zeros(6).long()),  # classes and places in one
        lambda: F.cross_entropy(X.softmax(2).reshape(6, 3, 4)[..., 0], torch.zeros(6).long()),
        lambda: F.cross_entropy(X.softmax(-1)[..., :2].flatten(0, 1), torch.zeros(24).long()),  # not all classes
        lambda: F.cross_entropy(X + X.softmax(1).detach(), TARGETS),
        lambda: F.binary_cross_entropy(X.sigmoid(), torch.zeros_like(X)),
        lambda: F.binary_cross_entropy_with_logits(X, torch.zeros_like(X)),
        lambda: F.binary_cross_entropy_with_logits(X.sigmoid() - 0.5, torch.zeros_like(X)),
        lambda: -F.logsigmoid(X[0].sigmoid() - X[1].sigmoid()).mean(),  # a ranking of scores
        lambda: torch.zeros(()),
    ],
)
def test_quiet(loss):
    assert found(loss) == []


def test_ddp_passes_outputs_on():
    """As `_DDPSink` does: a function with an output for each input, after its own argument."""

    class _DDPSink(torch.autograd.Function):
        @staticmethod
        def forward(ctx, weak, *outputs):
            return outputs

        @staticmethod
        def backward(ctx, *gradients):
            return (None, *gradients)

    other = torch.randn(2, requires_grad=True)
    (facts,) = found(lambda: F.cross_entropy(_DDPSink.apply(None, other, X.softmax(1))[1], TARGETS))
    assert facts.applied == "softmax"


def test_each_loss_of_alternating_passes():
    losses = [
        F.binary_cross_entropy_with_logits(X.sigmoid(), torch.zeros_like(X)),
        F.cross_entropy(X.softmax(1), TARGETS),
        F.cross_entropy(X, TARGETS),
    ] * 2
    both = found(lambda: losses.pop(0), passes=6)
    assert [(facts.applied, facts.passes, facts.passes_seen) for facts in both] == [
        ("sigmoid", 2, 6),
        ("softmax", 2, 6),
    ]


def test_lines_are_noted_without_checking_values():
    observer = ProbabilityLosses()
    observer.begin()
    observer.before_pass(F.cross_entropy(X.softmax(1), TARGETS))
    observer.after_pass()
    assert (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()) == (True, False)
    observer.end()
    assert not torch.is_anomaly_enabled()


def test_anomaly_mode_of_the_script_is_left_alone():
    with torch.autograd.set_detect_anomaly(True):
        (facts,) = found(lambda: F.cross_entropy(X.softmax(1), TARGETS), passes=2)
        assert (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()) == (True, True)
    assert "test_probability_losses.py" in facts.where


def test_nothing_is_read_before_it_begins():
    observer = ProbabilityLosses()
    observer.before_pass(F.cross_entropy(X.softmax(1), TARGETS))
    assert observer.facts() == []


def test_the_lowest_loss_is_that_of_a_perfect_model():
    """By hand: the probabilities are 1 for the class and 0 for the others; their softmax is e / (e + 13)."""
    (facts,) = found(lambda: F.cross_entropy(torch.randn(2, 14, requires_grad=True).softmax(1), torch.zeros(2).long()))
    assert facts.least_loss == pytest.approx(-math.log(math.e / (math.e + 13)))
    perfect = torch.eye(14)
    assert nn.CrossEntropyLoss()(perfect, torch.arange(14)).item() == pytest.approx(facts.least_loss, abs=1e-5)

"""Dropout that does not heed the mode of its module."""

import pytest

pytest.importorskip("torch", reason="the module that is tested imports it")
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from dptune.capture.injected.observe.active_dropouts import ActiveDropouts


class Places:
    compiled = ()


class Always(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.25)


class Usual(nn.Module):
    def forward(self, x):
        return F.dropout(x)


class Spatial(nn.Module):
    def forward(self, x):
        return F.dropout2d(x[:, None, None], 0.25)


class Heeds(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.25, training=self.training)


class HeedsByPosition(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.25, self.training)


class Branches(nn.Module):
    def forward(self, x):
        if self.training:
            x = F.dropout(x, 0.25)
        return x


class Chooses(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.25) if self.training else x


class MonteCarlo(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.25)


class Attention(nn.Module):
    def forward(self, x):
        x = x[None, None]
        return F.scaled_dot_product_attention(x, x, x, dropout_p=0.1)


class HeedingAttention(nn.Module):
    def forward(self, x):
        x = x[None, None]
        return F.scaled_dot_product_attention(x, x, x, dropout_p=0.1 if self.training else 0.0)


class NoAttentionDropout(nn.Module):
    def forward(self, x):
        x = x[None, None]
        return F.scaled_dot_product_attention(x, x, x)


class HelperBehindMode(nn.Module):
    def drop(self, x):
        return F.dropout(x, 0.25)

    def forward(self, x):
        return self.drop(x) if self.training else x


class PartBehindMode(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = Always()

    def forward(self, x):
        if not self.training:
            return x
        return self.part(x)


class LeavesInEvaluation(nn.Module):
    def forward(self, x):
        if not self.training:
            return x
        x = x + 1
        return F.dropout(x, 0.25)


class ProbabilityOfMode(nn.Module):
    def forward(self, x):
        p = 0.25 if self.training else 0.0
        return F.dropout(x, p)


class ProbabilityBehindMode(nn.Module):
    def forward(self, x):
        p = 0.0
        if self.training:
            p = 0.25
        return F.dropout(x, p=p)


class OwnTrain(nn.Module):
    p = 0.25

    def train(self, mode=True):
        self.p = 0.25 if mode else 0.0
        return super().train(mode)

    def forward(self, x):
        return F.dropout(x, self.p)


class Beside(nn.Module):
    """One call heeds the mode, the other does not."""

    def forward(self, x):
        x = F.dropout(x, 0.5, training=self.training)
        return F.dropout(x, 0.25)


class IfAny(nn.Module):
    p = 0.25

    def forward(self, x):
        if self.p > 0:
            x = F.dropout(x, self.p)
        return x


class ByArgument(nn.Module):
    def forward(self, x, drop=True):
        return F.dropout(x, 0.25) if drop else x


class ProbabilityOfArgument(nn.Module):
    def attend(self, x, p):
        return F.scaled_dot_product_attention(x, x, x, dropout_p=p)

    def forward(self, x):
        return self.attend(x[None, None], 0.25)


def found(module, mode=True):
    observer = ActiveDropouts(Places())
    observer.begin()
    module.train(mode)
    for _ in range(2):
        module(torch.randn(4, 4))
    observer.end()
    module(torch.randn(4, 4))
    return observer.facts()


@pytest.mark.parametrize(
    ("module", "operator", "probability"),
    [
        (Always(), "dropout", 0.25),
        (Usual(), "dropout", 0.5),
        (Spatial(), "dropout2d", 0.25),
        (Beside(), "dropout", 0.25),
        (IfAny(), "dropout", 0.25),
        (Attention(), "scaled_dot_product_attention", 0.1),
    ],
)
def test_lines(module, operator, probability):
    (facts,) = found(module)
    assert (facts.operator, facts.probability, facts.module) == (operator, probability, type(module).__name__)
    assert "test_active_dropouts.py:" in facts.where
    assert not facts.evaluated
    (facts,) = found(module, mode=False)
    assert facts.evaluated


@pytest.mark.parametrize(
    "module",
    [
        *(Heeds(), HeedsByPosition(), Branches(), Chooses(), MonteCarlo(), HeedingAttention(), NoAttentionDropout()),
        *(HelperBehindMode(), PartBehindMode(), LeavesInEvaluation()),
        *(ProbabilityOfMode(), ProbabilityBehindMode(), OwnTrain()),
        nn.Dropout(0.5),
        nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)),
        nn.TransformerEncoderLayer(4, 1, 4),
    ],
)
def test_none(module):
    assert found(module) == []


def test_repeated_sampling_by_the_name_of_the_caller():
    def mc_dropout(module):
        return found(module)

    assert mc_dropout(Always()) == []


@pytest.mark.parametrize("module", [ByArgument(), ProbabilityOfArgument()])
def test_an_argument_decides(module):
    assert found(module) == []
    assert [facts.evaluated for facts in found(module, mode=False)] == [True]

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

"""Squares of weights in the graph of a loss."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dptune.capture.injected.observe.weight_penalties import WeightPenalties


class Uncompiled:
    compiled = ()


MODEL = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))  # weights and biases of 64, 8, 8 and 1 elements
X = torch.randn(4, 8)


def found(penalty, passes=3):
    observer = WeightPenalties(Uncompiled())
    observer.begin()
    for _ in range(passes):
        loss = MODEL(X).square().mean() + 1e-4 * penalty(list(MODEL.parameters()))
        observer.before_pass(loss)
        loss.backward()
    observer.end()
    assert not {"pow", "__pow__", "square", "norm", "mul", "__mul__"} & set(vars(torch.Tensor)) - WITHOUT
    return observer.facts()


WITHOUT = {"pow", "__pow__", "square", "norm", "mul", "__mul__"} & set(vars(torch.Tensor))


@pytest.mark.parametrize(
    "square",
    [
        lambda weight: weight.pow(2).sum(),
        lambda weight: (weight**2).sum(),
        lambda weight: weight.square().mean(),
        lambda weight: (weight * weight).sum(),
        lambda weight: weight.norm() ** 2,
        lambda weight: torch.linalg.vector_norm(weight).pow(2.0),
    ],
)
def test_each_way_to_square(square):
    facts = found(lambda weights: sum(square(weight) for weight in weights))
    assert (facts.tensors, facts.elements) == (3, 80)  # not the bias of one element
    assert (facts.passes, facts.passes_seen) == (3, 3)
    assert facts.function.startswith("<lambda> (tests/capture/test_weight_penalties.py:")


@pytest.mark.parametrize(
    "penalty",
    [
        lambda weights: sum(weight.abs().sum() for weight in weights),
        lambda weights: sum(weight.norm() for weight in weights),
        lambda weights: sum(weight.pow(4).sum() for weight in weights),
        lambda weights: (weights[0].square() @ X.T).mean(),  # a variance, say
        lambda weights: sum(weight.detach().square().sum() for weight in weights),
    ],
)
def test_what_is_no_penalty_on_squares(penalty):
    assert found(penalty) is None

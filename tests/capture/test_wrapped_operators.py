"""Operators and layers that are wrapped while a script compiles with `fullgraph=True`."""

import os

import pytest

pytest.importorskip("torch", reason="the module that is tested imports it")
import torch
from torch import nn
from torch.nn import functional

from dptune.capture.injected.observe.frozen_norms import FrozenNorms
from dptune.capture.injected.observe.wrapped_operators import WrappedOperators


@pytest.fixture(autouse=True)
def nothing_compiled():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Places:
    compiled = ()


def test_operators_are_compiled_whole():
    noted = []
    operators = WrappedOperators(lambda name, *_: noted.append((name, os.getpid())))  # no compiler reads getpid
    operators.wrap(torch, "rand")
    operators.wrap(torch.Tensor, "normal_")
    operators.wrap(functional, "dropout")
    try:

        def noisy(x):
            return functional.dropout(x + torch.rand(4) + torch.empty(4).normal_(), 0.5)

        assert torch.compile(noisy, backend="eager", fullgraph=True)(torch.ones(4)).shape == (4,)
        noted.clear()  # graphs of this backend call the operators
        noisy(torch.ones(4))
        assert {name for name, _ in noted} == {"rand", "normal", "dropout"}
    finally:
        operators.unwrap()


def test_layers_are_compiled_whole():
    shown = []
    norms = FrozenNorms(Places(), lambda module, given: shown.append(id(module)))
    norms.begin()
    try:
        layer = nn.BatchNorm1d(3)
        assert torch.compile(layer, backend="eager", fullgraph=True)(torch.randn(4, 3)).shape == (4, 3)
        assert shown == []
        layer(torch.randn(4, 3))
        assert shown == [id(layer)]
    finally:
        norms.end()

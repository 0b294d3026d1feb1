"""Operators, layers and conversions that dptune wraps, in code that is compiled with `fullgraph=True`.

A script: it loads torch's compiler, which changes torch and the environment of the process for good. It prints what
each function below raised, by its name. A graph break in one of them would be an error.
"""

import json
import os
import sys
import traceback

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from dptune.capture.injected.observe.float64 import Doubling
from dptune.capture.injected.observe.frozen_norms import FrozenNorms
from dptune.capture.injected.observe.wrapped_operators import WrappedOperators


class Places:
    compiled = ()

    def alive(self, kind):
        return []


def settings():
    """What a script sets before the compiler is loaded is what the compiler has; checkpointing loads no compiler."""
    layer = nn.Linear(2, 2)
    checkpoint(layer, torch.ones(1, 2, requires_grad=True), use_reentrant=False).sum().backward()
    assert "torch._dynamo.eval_frame" not in sys.modules
    torch._dynamo.config.recompile_limit = 1000
    with FakeTensorMode(allow_non_fake_inputs=True):  # needs operators on meta tensors
        assert layer(torch.ones(1, 2)).shape == (1, 2)
    torch.compile(layer, backend="eager")(torch.ones(1, 2))
    assert "torch._dynamo.eval_frame" in sys.modules
    assert torch._dynamo.config.recompile_limit == 1000


def operators():
    noted = []
    wrapped = WrappedOperators(lambda name, *_: noted.append((name, os.getpid())))  # no compiler reads getpid
    wrapped.wrap(torch, "rand")
    wrapped.wrap(torch.Tensor, "normal_")
    wrapped.wrap(functional, "dropout")

    def noisy(x):
        return functional.dropout(x + torch.rand(4) + torch.empty(4).normal_(), 0.5)

    try:
        assert torch.compile(noisy, backend="eager", fullgraph=True)(torch.ones(4)).shape == (4,)
        noted.clear()  # graphs of this backend call the operators
        noisy(torch.ones(4))
        assert {name for name, _ in noted} == {"rand", "normal", "dropout"}, noted
    finally:
        wrapped.unwrap()


def layers():
    shown = []
    norms = FrozenNorms(Places(), lambda module, given: shown.append(id(module)))
    norms.begin()
    try:
        layer = nn.BatchNorm1d(3)
        assert torch.compile(layer, backend="eager", fullgraph=True)(torch.randn(4, 3)).shape == (4, 3)
        assert shown == [], shown
        layer(torch.randn(4, 3))
        assert shown == [id(layer)], shown
    finally:
        norms.end()


def conversions():
    model, rows = nn.Linear(8, 8), torch.randn(4, 8)
    Doubling(Places()).install()
    forward = torch.compile(lambda rows: model.to(rows.dtype)(rows), backend="eager", fullgraph=True)
    assert torch.equal(forward(rows), model(rows))


def raised(check):
    """What a check raised, as text."""
    try:
        check()
    except Exception:
        return traceback.format_exc()
    finally:
        torch.compiler.reset()
    return ""


if __name__ == "__main__":
    print(json.dumps({check.__name__: raised(check) for check in (settings, operators, layers, conversions)}))

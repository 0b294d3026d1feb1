"""Where parameters were made float64: the user's line, and the call."""

import sys
from collections import OrderedDict

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.modules import module as torchs  # noqa: E402

from dptune.capture.injected.observe.float64 import Doubling  # noqa: E402
from dptune.capture.injected.observe.places import Places  # noqa: E402

SCRIPT = """
    import torch
    from torch import nn

    helper, model = nn.Linear(2, 2), nn.Linear(8, 8)
    model = model.double(); helper.double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(8):
        model(torch.randn(4, 8, dtype=torch.float64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
WINDOWS = ("--warmup", "1", "--untraced", "3", "--light", "0", "--detailed", "0", "--continue")


@pytest.mark.records
def test_a_recording_has_the_line(profile):
    done = profile(SCRIPT, *WINDOWS)
    assert done.status == 0, done.err
    facts = done.facts()
    assert facts.optimizers[0].dtypes == ["float64"]
    assert (facts.doubled.where, facts.doubled.through) == ("train.py:6", "nn.Module.double")


class Known(Places):
    """Places that know of these optimizers."""

    def __init__(self):
        super().__init__()
        self.optimizers = []

    def alive(self, kind):
        return self.optimizers


@pytest.fixture
def watching(monkeypatch):
    """A Doubling that watches torch until the end of the test, and the optimizers it knows of."""
    for name in ("double", "to", "type"):
        monkeypatch.setattr(nn.Module, name, getattr(nn.Module, name))
    for name in ("set_default_dtype", "set_default_tensor_type"):
        monkeypatch.setattr(torch, name, getattr(torch, name))
    monkeypatch.setattr(torchs, "_global_parameter_registration_hooks", OrderedDict())
    places = Known()
    doubling = Doubling(places)
    doubling.install()
    yield doubling, places.optimizers
    torch.set_default_dtype(torch.float32)


def line():
    return sys._getframe(1).f_lineno


@pytest.mark.parametrize(
    ("convert", "through"),
    [
        (lambda model: model.double(), "double"),
        (lambda model: model.to(torch.float64), "to"),
        (lambda model: model.to("cpu", torch.double), "to"),
        (lambda model: model.to(torch.zeros(1, dtype=torch.float64)), "to"),
        (lambda model: model.type(torch.float64), "type"),
    ],
)
def test_a_module_that_is_converted(watching, convert, through):
    doubling, optimizers = watching
    model, helper = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4)), nn.Linear(2, 2)
    assert convert(model) is model
    model.to("cpu").double()  # which are float64 already
    helper.double()
    optimizers.append(torch.optim.SGD(model.parameters(), lr=0.1))
    found = doubling.facts()
    assert (found.through, found.where.rpartition(":")[2]) == (
        f"nn.Module.{through}",
        str(convert.__code__.co_firstlineno),
    )
    assert found.where.rpartition(":")[0].endswith("test_doubling.py")


def test_the_default_dtype(watching):
    doubling, optimizers = watching
    torch.set_default_dtype(torch.float64)
    where = line() - 1
    model = nn.Linear(4, 4).double()
    torch.set_default_dtype(torch.float32)
    optimizers.append(torch.optim.SGD(model.parameters(), lr=0.1))
    found = doubling.facts()
    assert (found.through, found.where.rpartition(":")[2]) == ("torch.set_default_dtype", str(where))


def test_parameters_that_are_made_float64(watching):
    doubling, optimizers = watching
    nn.Linear(2, 2, dtype=torch.float64)  # of no optimizer
    model = nn.Sequential(nn.Linear(4, 4, dtype=torch.float64), nn.LayerNorm(4))
    where = line() - 1
    optimizers.append(torch.optim.SGD(model.parameters(), lr=0.1))
    found = doubling.facts()
    assert (found.through, found.where.rpartition(":")[2]) == ("Linear", str(where))


def test_none_where_no_optimizer_updates_doubles(watching):
    doubling, optimizers = watching
    model, helper = nn.Linear(4, 4).double().float(), nn.Linear(4, 4).double()
    optimizers.append(torch.optim.SGD(model.parameters(), lr=0.1))
    assert doubling.facts() is None
    optimizers.append(torch.optim.SGD([nn.Parameter(torch.zeros(2, dtype=torch.float64))], lr=0.1))
    assert doubling.facts() is None  # made so by none of the calls
    assert helper.weight.dtype == torch.float64


def test_errors_of_a_conversion_stay_torchs(watching):
    with pytest.raises(TypeError, match="only accepts floating point"):
        nn.Linear(4, 4).to(torch.int64)
    assert nn.ReLU().double().to(torch.float64).type(torch.float64) is not None  # without parameters

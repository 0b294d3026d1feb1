"""BatchNorm layers that normalize over few samples: which calls count."""

import pytest

pytest.importorskip("torch", reason="the module that is tested imports it")
import torch
from torch import nn

from dptune.capture.injected.observe.frozen_norms import FrozenNorms
from dptune.capture.injected.observe.norm_samples import NormSamples
from dptune.capture.injected.observe.places import Places


def ran(model, sizes, *, gradients=True):
    """The facts after calls of the model with so many samples."""
    observer = NormSamples()
    calls = FrozenNorms(Places(), observer.ran)
    calls.begin()
    with torch.set_grad_enabled(gradients):
        for size in sizes:
            model(torch.randn(size, 3, 5))
    calls.end()
    observer.end()
    return observer.facts()


def test_the_most_samples_and_values():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(5, 4), nn.BatchNorm1d(3))
    facts = ran(model, (2, 2, 1))
    assert (facts.layers, facts.of_layers, facts.samples, facts.values) == (2, 2, 2, 10)
    assert facts.names == ["0", "2"]
    assert "test_norm_samples.py:" in facts.where


@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        (nn.BatchNorm1d(3), (2, 2, 2, 8)),  # a last batch of few samples
        (nn.BatchNorm1d(3), (2,)),
        (nn.BatchNorm1d(3, track_running_stats=False), (2, 2, 2)),
        (nn.BatchNorm1d(3).eval(), (2, 2, 2)),
        (nn.BatchNorm1d(3).requires_grad_(False), (2, 2, 2)),
        (nn.InstanceNorm1d(3, affine=True), (2, 2, 2)),
        (nn.GroupNorm(1, 3), (2, 2, 2)),
    ],
)
def test_none(model, sizes):
    assert ran(model, sizes) is None


def test_passes_without_gradients_do_not_count():
    assert ran(nn.BatchNorm1d(3), (2, 2, 2), gradients=False) is None


def test_layers_of_many_samples_are_counted_beside_them():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.whole, self.parts = nn.BatchNorm1d(3), nn.BatchNorm1d(3)

        def forward(self, x):
            return self.parts(self.whole(x)[:2])

    facts = ran(Both(), (16, 16, 16))
    assert (facts.layers, facts.of_layers, facts.samples, facts.names) == (1, 2, 2, ["parts"])

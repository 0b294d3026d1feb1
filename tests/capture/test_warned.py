"""What torch warns of while it trains data-parallel reaches the facts and the report."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dptune.advise.recording_limits import limits
from dptune.runfile.facts import Facts
from dptune.runfile.torch_warnings import WarningFacts

from .conftest import SHORT, Run

# A gradient whose strides are not those of its parameter, and warnings that are no business of ours.
STRIDES = """
    import warnings, torch, torch.distributed as dist
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29761", rank=0, world_size=1)

    class Odd(torch.autograd.Function):
        @staticmethod
        def forward(ctx, weight):
            return weight.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient.contiguous().as_strided((8, 3, 1, 1), (3, 1, 3, 3))

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(8, 3, 1, 1))

        def forward(self, x):
            return torch.nn.functional.conv2d(x, Odd.apply(self.weight))

    model = torch.nn.parallel.DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(60):
        warnings.warn("my own, of DDP")
        model(torch.randn(4, 3, 8, 8)).square().mean().backward()  # HERE
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.records
def test_a_warning_of_the_reducer_names_the_line_of_the_backward_pass(profile: Callable[..., Run]) -> None:
    run = profile(STRIDES, *SHORT)
    assert run.status == 0, run.err
    assert "Grad strides do not match bucket view strides" in run.err  # it is shown as before
    (warning,) = run.facts().warnings
    line = next(number for number, row in enumerate(STRIDES.splitlines(), 1) if "HERE" in row)
    assert warning.where == f"train.py:{line}"
    assert warning.text.startswith("Grad strides do not match bucket view strides.")
    assert "Triggered internally" not in warning.text
    (finding,) = [finding for finding in limits([run.facts()]) if finding.code == "torch-warning"]
    assert finding.level == "info"
    assert finding.text == f"PyTorch warning at train.py:{line}: {warning.text}"


def test_a_warning_of_some_ranks_names_them() -> None:
    warned = [Facts(rank, warnings=[WarningFacts("unused parameters")] if rank != 1 else []) for rank in range(3)]
    assert [finding.text for finding in limits(warned)] == ["PyTorch warning on ranks 0, 2: unused parameters"]

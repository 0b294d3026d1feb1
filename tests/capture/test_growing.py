"""What a recording of a real script tells of its memory and its operators."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dptune.measure import measure
from dptune.trace import load

from .conftest import PLAIN, Run

pytestmark = pytest.mark.records

THREE_DETAILED = ("--warmup", "2", "--untraced", "4", "--light", "2", "--detailed", "3")
KEEPS = PLAIN.replace("optimizer.zero_grad()", "optimizer.zero_grad(); kept.append(torch.ones(2**18))").replace(
    "model = ", "kept = []; model = "
)


def test_a_script_that_keeps_a_tensor_each_step_grows_by_it(profile: Callable[..., Run]) -> None:
    (one,) = measure(load([profile(KEEPS, *THREE_DETAILED).folder])).memory
    assert (one.device, one.window) == ("cpu", "detailed")
    assert one.growth_bytes_per_step == pytest.approx(2**20, abs=2**12)
    assert one.allocated_bytes_per_step > 2**20
    assert one.known("peak_allocated_bytes") is None


@pytest.mark.thorough
def test_a_script_that_keeps_nothing_does_not_grow(profile: Callable[..., Run]) -> None:
    run = measure(load([profile(PLAIN, *THREE_DETAILED).folder]))
    (one,) = run.memory
    assert one.growth_bytes_per_step == pytest.approx(0, abs=2**12)
    operators = run.kernels
    assert operators.counted == "operators"
    # One thread computes at a time, so their own times add up to the account's compute.
    assert operators.total_ns == pytest.approx(run.account.compute_ns, rel=0.01)
    assert "aten::addmm" in {top.name for top in operators.top}

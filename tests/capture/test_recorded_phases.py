"""A run that dptune records itself: what its script does where is known beforehand."""

from __future__ import annotations

import pytest

from dptune.measure import measure
from dptune.trace import load

pytestmark = pytest.mark.records

SCRIPT = """
    import torch
    from torch.profiler import record_function

    class Narrow(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(64, 8)

        def forward(self, x):
            return self.layer(x)

    class Wide(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(64, 4096))

        def forward(self, x):
            return x @ self.weight @ self.weight.T

    def train():
        model = torch.nn.Sequential(Wide(), Narrow())
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        for step in range(60):
            out = model(torch.randn(256, 64))
            with record_function("the loss"):
                loss = out.square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    train()
"""


@pytest.fixture
def measured(profile):
    run = profile(SCRIPT, "--warmup", "3", "--untraced", "5", "--light", "4", "--detailed", "1")
    assert run.status == 0, run.err
    return measure(load([run.folder]))


@pytest.mark.thorough
def test_what_the_script_is_known_to_do(measured):
    phases = {one.phase: one for one in measured.phases}
    assert set(phases) >= {"forward", "backward", "optimizer"}
    assert sum(one.compute_ns for one in measured.phases) == measured.account.compute_ns
    assert all(phases[name].compute_ns > 0 for name in ("forward", "backward", "optimizer"))
    steps = [step.account.window_ns for rank in measured.ranks for device in rank.devices for step in device.steps]
    assert sum(one.host_ns for one in measured.phases if one.phase != "unknown") == sum(steps)
    assert measured.missing["overlap"] == "the steps hold no communication"

    found = measured.attribution
    assert (found.window, found.steps) == ("detailed", 1)
    modules = {one.name: one.compute_ns for one in found.modules.top}
    assert set(modules) == {"Wide", "Linear"}  # Narrow computes nothing but in its Linear
    functions = {one.name.partition("): ")[0]: one.compute_ns for one in found.functions.top}
    numbered = list(enumerate(SCRIPT.splitlines(), 1))
    narrow, wide = (at for at, row in numbered if "def forward" in row)
    assert functions[f"train.py({wide}"] == modules["Wide"]
    assert functions[f"train.py({narrow}"] == modules["Linear"]
    (loss,) = found.annotations.top
    assert loss.name == "the loss"

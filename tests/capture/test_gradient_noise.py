"""Norms of gradients, small and large, taken from a script whose gradient noise is known in closed form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .. import in_process  # noqa: TID252 - tests are no installed package
from .launching import facts_in, run_here

pytestmark = pytest.mark.records

# Least squares at a distance of 1 from its solution, in 16 dimensions with noise 1: 33 samples (see test_noise.py).
# Nothing is learned, and gradients are clipped to nothing before they are used.
TRAIN = """\
import sys
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

passes = int(sys.argv[1])
torch.set_num_threads(1)
torch.manual_seed(1)
x = torch.randn(200_000, 16)
model = torch.nn.Linear(16, 1, bias=False)
model.weight.data = torch.eye(16)[:1]
data = TensorDataset(x, torch.randn(len(x), 1))
seed = 0
if "alone" not in sys.argv:
    dist.init_process_group("gloo")
    seed = dist.get_rank()
    model = torch.nn.parallel.DistributedDataParallel(model)
loader = DataLoader(data, 8, shuffle=True, generator=torch.Generator().manual_seed(seed))
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
scaler = torch.amp.GradScaler("cpu", init_scale=16.0, enabled="scaled" in sys.argv)
for number, (inputs, wanted) in enumerate(loader):
    loss = 0.5 * (model(inputs) - wanted).square().mean() / passes
    scaler.scale(loss).backward()
    if (number + 1) % passes == 0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
if "alone" not in sys.argv:
    dist.barrier()
    dist.destroy_process_group()
"""
WINDOWS = (
    "--warmup",
    "1",
    "--untraced",
    "3",
    "--light",
    "3",
    "--detailed",
    "0",
    "--noise-scale",
    "80",
    "-q",
    "--no-links",
)


def noise_of(folder: Path, *script: str, ranks: int = 1):  # type: ignore[no-untyped-def]
    (folder / "train.py").write_text(TRAIN)
    launcher = ("--nproc-per-node", str(ranks)) if ranks > 1 else ()
    done = run_here("profile", *WINDOWS, "--run-dir", "run", *launcher, "train.py", *script, cwd=folder)
    assert done.status == 0, done.err
    for own in facts_in(folder / "run"):
        window = own.window("noise")
        assert window is not None
        assert (window.steps, len(own.noise.of_steps), window.complete, window.trace) == (80, 80, True, None)
        assert {len(step) for step in own.noise.of_passes} == {int(script[0])}
    told = in_process.dptune("report", "--format", "json", "--no-cache", "run", cwd=folder)
    text = in_process.dptune("report", "--full", "--no-cache", "run", cwd=folder)
    assert "beyond that, a larger global batch hardly helps convergence" in " ".join(text.stdout.split())
    return json.loads(told.stdout)["measured"]["noise"]


@pytest.mark.parametrize(
    ("script", "ranks", "small", "large"),
    [
        pytest.param(("1",), 2, 8, 16, marks=pytest.mark.thorough),
        pytest.param(("4",), 2, 8, 64, marks=pytest.mark.thorough),
        (("4", "alone", "scaled"), 1, 8, 32),
    ],
    ids=["two ranks", "two ranks, four passes", "four passes, scaled"],
)
def test_it_is_what_the_formula_says(
    tmp_path: Path, script: tuple[str, ...], ranks: int, small: int, large: int
) -> None:
    pytest.importorskip("torch", reason="recording needs torch")
    found = noise_of(tmp_path, *script, ranks=ranks)
    assert (found["steps"], found["small_batch"], found["large_batch"]) == (80, small, large)
    assert found["low"] < 33 < found["high"]
    assert 16 < found["noise_scale"] < 66

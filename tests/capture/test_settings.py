"""Settings changed from outside: in force in the script, read back, and what is not is said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dptune.capture.effect import reading
from dptune.capture.injected.applying import applier
from dptune.knobs import KNOBS
from dptune.runfile.facts import Facts

from .launching import facts_in, run_here

pytestmark = pytest.mark.records

# Two micro-batches a step, but for the last step of an epoch, which has one.
TRAIN = """\
import sys
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

if "threads" not in sys.argv:
    torch.set_num_threads(1)
torch.manual_seed(3)
data = TensorDataset(torch.randn(5 * 8, 64))
options = {"num_workers": 1, "persistent_workers": True} if "workers" in sys.argv else {}
loader = DataLoader(data, batch_size=8, **options)
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(6)])
if "alone" not in sys.argv:
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.set_float32_matmul_precision("highest")
for epoch in range(6):
    for number, (batch,) in enumerate(loader):
        noise = 0.1 * torch.randn(batch.shape)
        (model(batch + noise) ** 2).mean().backward()
        if number % 2 or number == len(loader) - 1:
            optimizer.step()
            optimizer.zero_grad()
if "alone" not in sys.argv:
    total = sum(parameter.detach().double().abs().sum() for parameter in model.parameters())
    print(f"rank {dist.get_rank()} ends with {total:.9f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
"""
WITHOUT_BF16 = "no GPU, and this CPU supports no other precision"
WINDOWS = ("--warmup", "3", "--untraced", "6", "--light", "0", "--detailed", "0", "-q")
TOGETHER = [
    (
        {
            "ddp.bucket_cap_mb": "0.05",
            "ddp.comm_hook": "fp16",
            "ddp.gradient_as_bucket_view": "true",
            "ddp.batched_grad_copy": "true",
            "ddp.broadcast_buffers": "false",
            "loader.num_workers": "2",
            "loader.prefetch_factor": "4",
            "loader.persistent_workers": "true",
            "loader.batch_size": "4",
            "optimizer.fused": "true",
            "optimizer.lr": "0.02",
            "optimizer.betas": "0.8,0.99",
            "optimizer.eps": "1e-06",
            "precision.float32_matmul": "medium",
        },
        (),
    ),
    (
        {
            "ddp.bucket_cap_mb_list": "0.05,0.02",
            "ddp.comm_hook": "bf16",
            "ddp.static_graph": "true",
            "ddp.find_unused_parameters": "true",
            "loader.num_workers": "0",
            "optimizer.foreach": "true",
            "precision.autocast": "bf16",
        },
        ("workers",),
    ),
    ({"ddp.comm_hook": "powersgd"}, ()),
    ({"env.OMP_NUM_THREADS": "2"}, ("threads",)),  # torch is loaded with it: no fork
]


def profile(folder: Path, settings: dict[str, str], *more: str, script: tuple[str, ...] = (), ranks: int = 2):  # type: ignore[no-untyped-def]
    """Record TRAIN with these settings; what dptune said, and the facts of each rank."""
    (folder / "train.py").write_text(TRAIN)
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    launcher = ("--nproc-per-node", str(ranks)) if ranks > 1 else ()
    done = run_here("profile", *WINDOWS, *more, "--run-dir", "run", *words, *launcher, "train.py", *script, cwd=folder)
    assert done.status == 0, done.err
    return done, facts_in(folder / "run")


@pytest.mark.parametrize(
    ("settings", "script"),
    [
        pytest.param(*each, id=name, marks=pytest.mark.thorough if name in ("powersgd", "threads") else ())
        for name, each in zip(("one", "other", "powersgd", "threads"), TOGETHER, strict=True)
    ],
)
def test_they_are_in_force(tmp_path: Path, settings: dict[str, str], script: tuple[str, ...]) -> None:
    torch = pytest.importorskip("torch", reason="recording needs torch")
    done, facts = profile(tmp_path, settings, script=script)
    without_effect = [line for line in done.err.splitlines() if "did not take effect" in line]
    if "precision.float32_matmul" in settings and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        (line,) = without_effect  # some processors multiply in nothing but 32 bits
        assert line.endswith("precision.float32_matmul did not take effect: rank 0: " + WITHOUT_BF16), line
    else:
        assert without_effect == []
    assert "could not be" not in done.err
    told = json.loads((tmp_path / "run" / "run.json").read_text())["settings"]
    assert list(told) == list(settings)
    for own in facts:
        check(own, settings)


def check(own: Facts, settings: dict[str, str]) -> None:
    """What the facts say themselves, without what dptune makes of them."""
    (ddp,), (optimizer,), (loader,) = own.ddp, own.optimizers, own.loaders
    if "ddp.bucket_cap_mb" in settings:  # layers of 64 * 65 * 4 bytes; the fourth reaches 52,428 and closes the bucket
        assert ddp.rebuilt_bucket_sizes == [4 * 16640, 2 * 16640]
        assert (loader.num_workers, loader.prefetch_factor, loader.batch_size) == (2, 4, 4)
        assert (optimizer.fused, optimizer.foreach) == (True, False)
        assert optimizer.learning_rates == [0.02]
        assert (optimizer.betas, optimizer.eps) == ([0.8, 0.99], 1e-6)
        assert own.settings["float32_matmul_precision"] == "medium"
        assert ddp.comm_hook == "fp16_gradients"
        assert (ddp.gradient_as_bucket_view, ddp.broadcast_buffers) == (True, False)
    elif "ddp.bucket_cap_mb_list" in settings:
        assert ddp.bucket_caps_bytes == [52428, 20971]
        assert (ddp.static_graph, ddp.find_unused_parameters) == (True, True)
        assert (loader.num_workers, loader.persistent_workers) == (0, False)
        assert own.autocast == "cpu:bfloat16"
        assert ddp.comm_hook == "bf16_gradients"
    elif "env.OMP_NUM_THREADS" in settings:
        assert own.environment["OMP_NUM_THREADS"] == "2"
    else:
        assert ddp.rebuilt_bucket_sizes in ([], [6 * 16640])  # one for all
        assert ddp.comm_hook == "powersgd_gradients"


@pytest.mark.thorough
def test_micro_batches_reduce_once_a_step_and_learn_the_same(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="recording needs torch")
    ends = []
    for name, settings in (("without", {}), ("with", {"ddp.no_sync": "true"})):
        folder = tmp_path / name
        folder.mkdir()
        done, facts = profile(folder, settings, "--continue")
        assert "did not take effect" not in done.err
        windows = [own.window("untraced") for own in facts]
        unsynced = [window.unsynced_backwards for window in windows if window]
        passes = [window.backwards for window in windows if window]
        assert {tuple(each) for each in passes} == {(2, 2, 1, 2, 2, 1)} or set(map(sum, passes)) == {10}
        assert all(
            held == (made - 1 if settings else 0)
            for both in zip(passes, unsynced, strict=True)
            for made, held in zip(*both, strict=True)
            if made > 1
        )
        ends.append(sorted(line.split()[-1] for line in done.out.splitlines() if line.startswith("rank ")))
    assert len(set(ends[0])) == len(set(ends[1])) == 1  # all ranks hold the same
    assert float(ends[0][0]) == pytest.approx(float(ends[1][0]), rel=1e-5)


def test_what_has_no_effect_is_said_with_the_reason(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="recording needs torch")
    settings = {"ddp.bucket_cap_mb": "1", "loader.prefetch_factor": "4", "ddp.no_sync": "true"}
    done, _ = profile(tmp_path, settings, script=("alone",), ranks=1)
    assert "dptune: ddp.bucket_cap_mb did not take effect: the script creates no DistributedDataParallel" in done.err
    assert "dptune: loader.prefetch_factor did not take effect: it is None in the script" in done.err
    assert "dptune: ddp.no_sync did not take effect: no step has several DDP backward passes" in done.err


@pytest.mark.parametrize("name", KNOBS)
def test_every_knob_has_an_applier_and_is_read_back(name: str) -> None:
    pytest.importorskip("torch", reason="appliers need torch")
    assert applier(name) is not None
    read, absent = reading(name)
    assert name == "memory.checkpointing" or absent  # said of a script that made nothing with the setting
    assert isinstance(read(Facts(0), KNOBS[name].default), Iterator)

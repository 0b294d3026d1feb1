"""Settings as scripts can write them: what is in force is, what is not is said, and no script fails of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptune.runfile.facts import Facts

from .launching import facts_in, run_here

pytestmark = pytest.mark.records

WINDOWS = ("--warmup", "1", "--untraced", "3", "--light", "0", "--detailed", "0", "-q", "--continue")

# One rank, whose own DistributedDataParallel it is nevertheless.
BEGIN = """\
import copy, os, pickle, sys, tempfile, warnings
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo", init_method="file://" + tempfile.mktemp(), rank=0, world_size=1)


def train(model, optimizer=None, steps=6, scaler=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        loss = model(torch.ones(4, 8)).float().sum()
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()


"""
NOTHING_SAID = ""


def profiled(folder: Path, script: str, *settings: str, **env: str) -> tuple[str, str, Facts]:
    """Run a script of one rank with these settings: what it printed, what dptune said, and its facts."""
    pytest.importorskip("torch", reason="recording needs torch")
    (folder / "train.py").write_text(BEGIN + script)
    words = [word for setting in settings for word in ("--set", setting)]
    done = run_here("profile", *WINDOWS, *words, "--run-dir", "run", "train.py", cwd=folder, env=env)
    assert done.status == 0, done.err
    assert "could not be" not in done.err
    (facts,) = facts_in(folder / "run")
    told = ("did not take effect", "unknown")
    said = "\n".join(line for line in done.err.splitlines() if any(words in line for words in told))
    return done.out, said, facts


def test_what_this_machine_or_the_script_leaves_without_effect_is_said(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="recording needs torch")
    if torch.cuda.is_available():
        pytest.skip("tells of a machine without a GPU")
    script = """\
os.environ["OVERWRITTEN"] = "script's"
del os.environ["DELETED"]
os.environ["API_TOKEN"] = "hunter2"
model = DistributedDataParallel(torch.nn.Linear(8, 8), bucket_cap_mb=50)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with warnings.catch_warnings():
    warnings.simplefilter("error")
    for batch in DataLoader(torch.ones(24, 8), batch_size=4):
        model(batch).sum().backward()
        optimizer.step()
"""
    asked = {
        "ddp.first_bucket_mb=4": "the script sets the size of all buckets, including the first: 50 MiB",
        "loader.pin_memory=true": "no accelerator present: pinning memory has no effect",
        "cudnn.benchmark=true": "no GPU: cuDNN is not used",
        "cudnn.allow_tf32=false": "no GPU: cuDNN is not used",
        "env.OVERWRITTEN=mine": "OVERWRITTEN is script's in the script",
        "env.DELETED=mine": "DELETED is not set in the script",
        "env.API_TOKEN=hidden": "API_TOKEN is <redacted> in the script",
        "env.KEPT=mine": NOTHING_SAID,
        "env.KEPT_SECRET=hidden": NOTHING_SAID,
    }
    _, said, facts = profiled(tmp_path, script, *asked)
    for setting, why in asked.items():
        name = setting.partition("=")[0]
        assert (f"dptune: {name} did not take effect: {why}" in said.splitlines()) == bool(why), said
        assert (f"dptune: {name} " in said) == bool(why), said
    told = {one.name: (one.value, one.as_asked) for one in facts.variables}
    assert told["KEPT"] == ("mine", True)
    assert told["KEPT_SECRET"] == ("<redacted>", True)
    assert "hunter2" not in (tmp_path / "run" / "rank-00000.facts.json").read_text()


@pytest.mark.thorough
def test_threads_that_the_script_changes_are_said(tmp_path: Path) -> None:
    """torch is loaded with the variable: no fork. test_effect has the sentence each time."""
    pytest.importorskip("torch", reason="recording needs torch")
    _, said, _ = profiled(tmp_path, "train(torch.nn.Linear(8, 8))\n", "env.OMP_NUM_THREADS=2")
    assert said == "dptune: env.OMP_NUM_THREADS did not take effect: torch computes with 1 thread in the script"


@pytest.mark.thorough
def test_a_float32_precision_that_this_cpu_has_not_is_said(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="recording needs torch")
    if torch.cuda.is_available() or torch.cpu._is_amx_fp16_supported():
        pytest.skip("tells of a machine without TF32")
    script = "train(torch.nn.Linear(8, 8))\n"
    _, said, _ = profiled(tmp_path, script, "precision.float32_matmul=high")
    assert said == (
        "dptune: precision.float32_matmul did not take effect: no GPU, and this CPU supports no other precision"
    )


OPTIMIZERS = """\
class Own(torch.optim.AdamW):
    def __init__(self, parameters):
        super().__init__(parameters, 0.1, fused=True)
        self._step_supports_amp_scaling = True


made = {
    "Adam": lambda of: torch.optim.Adam(of, lr=0.1, fused=True),
    "SGD": lambda of: torch.optim.SGD(of, lr=0.1, fused=True),
    "Adagrad": lambda of: torch.optim.Adagrad(of, lr=0.1, fused=True),
    "Own": Own,
    "Loaded": lambda of: torch.optim.Adam(of, lr=0.1, fused=True),
    "Plain": lambda of: torch.optim.Adam(of, lr=0.1),
}
kept = []
for name, make in made.items():
    model = torch.nn.Linear(8, 8)
    optimizer = make(model.parameters())
    if name == "Loaded":
        train(model, optimizer, steps=1)
        saved = optimizer.state_dict()
        for group in saved["param_groups"]:
            group["fused"], group["foreach"] = SAVED
        optimizer.load_state_dict(saved)
    before = model.weight.detach().clone()
    train(model, optimizer, scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))
    group = optimizer.param_groups[0]
    moved = (model.weight.detach() - before).abs().max().item()
    print(name, bool(group["fused"]), bool(group["foreach"]), 0.1 < moved < 5)
    kept.append(optimizer)
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("setting", "saved", "fused", "foreach"),
    [
        ("optimizer.fused=false", "True, None", False, False),
        ("optimizer.fused=true", "None, True", True, False),
        ("optimizer.foreach=true", "True, None", False, True),
    ],
)
def test_an_optimizer_is_the_one_asked_for_under_a_scaler_too(
    tmp_path: Path, setting: str, saved: str, fused: bool, foreach: bool
) -> None:
    out, said, _ = profiled(tmp_path, OPTIMIZERS.replace("SAVED", saved), setting)
    names = ("Adam", "SGD", "Adagrad", "Own", "Loaded", "Plain")
    assert out.split("\n")[: len(names)] == [f"{name} {fused} {foreach} True" for name in names]
    assert said == NOTHING_SAID


RATES = """\
model = torch.nn.Linear(8, 8)
groups = [{"params": [model.weight], "lr": 0.2}, {"params": [model.bias]}]
optimizer = torch.optim.SGD(groups, lr=0.1)
print([group["lr"] for group in optimizer.param_groups])
mine = optimizer.state_dict()
older = {**mine, "param_groups": [{**group, "lr": 0.04} for group in mine["param_groups"]]}
for group in older["param_groups"]:
    group.pop("dptune_lr_times", None)
optimizer.load_state_dict(mine)
print([group["lr"] for group in optimizer.param_groups], sorted(optimizer.param_groups[0])[:2])
optimizer.load_state_dict(older)
print([group["lr"] for group in optimizer.param_groups])
optimizer.load_state_dict(mine)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.1)
for _ in range(6):
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    schedule.step()
print([round(group["lr"], 9) for group in optimizer.param_groups])
"""


def test_a_learning_rate_is_the_one_asked_for_whatever_is_loaded_and_scheduled(tmp_path: Path) -> None:
    """Twice that of the first group, so twice all others; of a state of a run without it as well. Six steps of a
    schedule leave a thousandth."""
    out, said, facts = profiled(tmp_path, RATES, "optimizer.lr=0.4")
    assert out.splitlines() == [
        "[0.4, 0.2]",
        "[0.4, 0.2] ['dampening', 'differentiable']",
        "[0.08, 0.08]",
        "[0.0004, 0.0002]",
    ]
    assert said == NOTHING_SAID
    (optimizer,) = facts.optimizers
    assert optimizer.first_learning_rate == 0.4


BETAS = """\
model = torch.nn.Linear(8, 8)
groups = [{"params": [model.weight]}, {"params": [model.bias], "betas": (0.5, 0.5)}]
optimizer = torch.optim.Adam(groups, lr=0.1, betas=(0.0, 0.99))
older = optimizer.state_dict()
older["param_groups"][0].update(betas=(0.0, 0.99), eps=1e-8)  # of a run without the change
optimizer.load_state_dict(older)
train(model, optimizer)
print([(group["betas"], group["eps"]) for group in optimizer.param_groups])
"""


@pytest.mark.thorough
def test_betas_and_eps_are_those_asked_for_whatever_is_loaded(tmp_path: Path) -> None:
    """Of the second group, which has betas of its own, only eps."""
    out, said, facts = profiled(tmp_path, BETAS, "optimizer.betas=0.5,0.9", "optimizer.eps=1e-6")
    assert out.splitlines() == ["[((0.5, 0.9), 1e-06), ((0.5, 0.5), 1e-06)]"]
    assert said == NOTHING_SAID
    assert [(one.betas, one.eps) for one in facts.optimizers] == [([0.5, 0.9], 1e-6)]


@pytest.mark.thorough
def test_betas_that_cannot_be_set_are_said(tmp_path: Path) -> None:
    script = "model = torch.nn.Linear(8, 8)\ntrain(model, torch.optim.Adam(model.parameters(), betas=(0.0, 0.99)))\n"
    (tmp_path / "one").mkdir()
    _, said, facts = profiled(tmp_path / "one", script, "optimizer.betas=0.9,1")
    assert said == "dptune: optimizer.betas did not take effect: betas are two numbers below 1"
    assert facts.optimizers[0].betas == [0.0, 0.99]
    (tmp_path / "other").mkdir()
    script = "second = torch.optim.Adam(torch.nn.Linear(8, 8).parameters())\n" + script
    _, said, _ = profiled(tmp_path / "other", script, "optimizer.betas=0.5,0.9")
    assert "the script creates several optimizers with betas, so the setting is ambiguous" in said


WRAPPED = """\
class Wrapper(torch.optim.Optimizer):  # as Accelerate wraps one
    def __init__(self, optimizer):
        self.optimizer = optimizer

    param_groups = property(lambda self: self.optimizer.param_groups)
    defaults = property(lambda self: self.optimizer.defaults)

    def step(self):
        self.optimizer.step()

    def zero_grad(self):
        self.optimizer.zero_grad()


model = torch.nn.Linear(8, 8)
inner = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.LinearLR(inner, start_factor=0.1, total_iters=3)
optimizer = Wrapper(inner)
train(model, optimizer, steps=6)
for _ in range(4):
    schedule.step()
print(round(inner.param_groups[0]["lr"], 9))
"""


@pytest.mark.thorough
def test_a_wrapped_optimizer_has_its_rate_changed_once(tmp_path: Path) -> None:
    out, said, _ = profiled(tmp_path, WRAPPED, "optimizer.lr=0.2")
    assert out.splitlines() == ["0.2"]
    assert said == NOTHING_SAID


@pytest.mark.thorough
def test_of_several_optimizers_it_is_not_known_which_is_meant(tmp_path: Path) -> None:
    script = """\
model, other = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
second = torch.optim.SGD(other.parameters(), lr=0.3)
train(model)
"""
    _, said, _ = profiled(tmp_path, script, "optimizer.lr=0.2")
    assert said.startswith("dptune: optimizer.lr did not take effect: the script creates several optimizers")


@pytest.mark.thorough
def test_a_schedule_that_was_loaded_and_starts_elsewhere_is_said(tmp_path: Path) -> None:
    script = """\
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100)
schedule.load_state_dict({**schedule.state_dict(), "base_lrs": [0.1]})  # of a run without the change
train(model, optimizer)
"""
    _, said, _ = profiled(tmp_path, script, "optimizer.lr=0.2")
    assert said == "dptune: optimizer.lr did not take effect: StepLR starts from 0.1 in the script"


@pytest.mark.thorough
def test_a_learning_rate_that_the_script_sets_itself_is_said(tmp_path: Path) -> None:
    script = """\
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer.param_groups[0]["lr"] = 0.3
train(model, optimizer)
"""
    _, said, _ = profiled(tmp_path, script, "optimizer.lr=0.2")
    assert said == "dptune: optimizer.lr did not take effect: it is 0.3 in the script"


@pytest.mark.thorough
def test_an_optimizer_that_cannot_be_it_is_left_alone(tmp_path: Path) -> None:
    script = """\
model = torch.nn.Linear(8, 8)
train(model, torch.optim.Adam(model.parameters(), lr=torch.tensor(0.1)))
"""
    _, said, _ = profiled(tmp_path, script, "optimizer.foreach=true")
    assert "optimizer.foreach did not take effect: a tensor learning rate works with foreach only" in said


@pytest.mark.parametrize("value", [pytest.param("true", marks=pytest.mark.thorough), "false"])
def test_buffers_are_sent_as_asked_whichever_name_the_script_uses(tmp_path: Path, value: str) -> None:
    script = """\
models = []
for options in ({}, {"broadcast_buffers": NOT}, {"forward_sync_buffers": NOT}):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if "broadcast_buffers" in options else "error")
        try:
            models.append(DistributedDataParallel(torch.nn.BatchNorm1d(8), **options))
        except TypeError:  # an older torch
            continue
for model in models:
    train(model, steps=2)
"""
    other = {"true": "False", "false": "True"}[value]
    _, said, facts = profiled(tmp_path, script.replace("NOT", other), f"ddp.broadcast_buffers={value}")
    assert said == NOTHING_SAID
    assert [one.broadcast_buffers for one in facts.ddp] == [value == "true"] * len(facts.ddp)
    assert len(facts.ddp) > 1


@pytest.mark.thorough
def test_a_hook_of_the_script_is_left_out_however_it_is_registered(tmp_path: Path) -> None:
    script = """\
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
models = [DistributedDataParallel(torch.nn.Linear(8, 8)) for _ in range(3)]
models[0]._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
models[1].register_comm_hook(None, fp16_compress_hook)
for model in models:
    train(model, steps=3)
"""
    for hook in ("bf16", "none"):
        folder = tmp_path / hook
        folder.mkdir()
        _, said, facts = profiled(folder, script, f"ddp.comm_hook={hook}")
        assert said == NOTHING_SAID
        assert {one.comm_hook for one in facts.ddp} == ({"bf16_gradients"} if hook == "bf16" else {None})


@pytest.mark.thorough
@pytest.mark.parametrize("hook", ["fp16", "none"])
def test_a_hook_that_steps_the_optimizer_stays(tmp_path: Path, hook: str) -> None:
    script = """\
inner = torch.nn.Linear(8, 8)
model = DistributedDataParallel(inner)
model._register_fused_optim(torch.optim.SGD, lr=0.1)
before = inner.weight.detach().clone()
model(torch.ones(4, 8)).sum().backward()
print("trained", bool((inner.weight != before).any()))
train(torch.nn.Linear(8, 8))
"""
    out, said, _ = profiled(tmp_path, script, f"ddp.comm_hook={hook}")
    assert out.startswith("trained True")
    assert "ddp.comm_hook did not take effect: the existing hook steps the optimizer" in said


def test_autocast_is_that_of_the_module_and_of_no_copy(tmp_path: Path) -> None:
    script = """\
class Doubling(DistributedDataParallel):
    def __init__(self, inner):
        super().__init__(inner)
        self.factor = 2


model = Doubling(torch.nn.Linear(8, 8))
train(model)
copied = copy.deepcopy(model.module)
with torch.no_grad():
    copied.weight.zero_(), copied.bias.zero_()
    pickle.dumps(model.module)
    print(model(torch.ones(1, 8)).dtype, copied(torch.ones(1, 8)).abs().sum().item())
"""
    out, said, _ = profiled(tmp_path, script, "precision.autocast=bf16")
    assert out.startswith("torch.bfloat16 0.0")
    assert said == NOTHING_SAID


@pytest.mark.thorough
def test_autocast_of_the_script_can_be_switched_off(tmp_path: Path) -> None:
    script = """\
model = DistributedDataParallel(torch.nn.Linear(8, 8))
with torch.autocast("cpu", dtype=torch.bfloat16):
    train(model)
    print(model(torch.ones(1, 8)).dtype)
"""
    out, said, facts = profiled(tmp_path, script, "precision.autocast=off")
    assert out.startswith("torch.float32")
    assert (said, facts.autocast) == (NOTHING_SAID, None)


@pytest.mark.thorough
def test_autocast_is_off_inside_the_module_and_without_one_of_ddp(tmp_path: Path) -> None:
    script = """\
class Casting(torch.nn.Linear):
    @torch.autocast("cpu", dtype=torch.float16)
    def forward(self, rows):
        return super().forward(rows)


model = Casting(8, 8)
train(model)
print(model(torch.ones(1, 8)).dtype)
"""
    out, said, _ = profiled(tmp_path, script, "precision.autocast=off")
    assert out.startswith("torch.float32")
    assert said == NOTHING_SAID


@pytest.mark.thorough
def test_what_torch_refuses_in_a_script_does_not_end_it(tmp_path: Path) -> None:
    script = """\
def refuse(precision):
    raise RuntimeError("mix of the legacy and new APIs")


model = torch.nn.Linear(8, 8)
torch._C._set_float32_matmul_precision = refuse
train(model)
print("trained")
"""
    out, said, _ = profiled(tmp_path, script, "precision.float32_matmul=medium")
    assert out.startswith("trained")
    assert "precision.float32_matmul did not take effect: torch refuses it in the script: mix of the legacy" in said


@pytest.mark.parametrize(
    ("made", "batches", "told"),
    [
        ("DataLoader(data, 2), DataLoader(data, 12)", "4 12", ""),
        pytest.param("DataLoader(data, 2), DataLoader(data, 2)", "4 4", "", marks=pytest.mark.thorough),
        pytest.param(
            "[*reversed((DataLoader(data, 12), DataLoader(data, 2)))]",
            "2 4",
            "it is 2 in the script",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_a_loader_of_other_batches_has_another_purpose(tmp_path: Path, made: str, batches: str, told: str) -> None:
    """That of the script's first loader is changed; whether that is the one it trains from is read off the draws."""
    script = f"""\
data = torch.ones(24, 8)
loader, validation = {made}
print(len(next(iter(loader))), len(next(iter(validation))))
list(loader)
model = torch.nn.Linear(8, 8)
train(model)
"""
    out, said, _ = profiled(tmp_path, script, "loader.batch_size=4")
    assert out.startswith(batches)
    assert said == (f"dptune: loader.batch_size did not take effect: {told}" if told else NOTHING_SAID)


def test_loaders_of_any_kind_get_what_they_can_take(tmp_path: Path) -> None:
    script = """\
class Endless(IterableDataset):
    def __iter__(self):
        return iter(torch.ones(24, 8))


class Own(DataLoader):
    def __init__(self, data, size):
        super().__init__(data, size, False)


data = torch.ones(24, 8)
sampler = torch.utils.data.BatchSampler(torch.utils.data.SequentialSampler(data), 6, False)
loaders = [DataLoader(data, 6), Own(data, 6), DataLoader(data, batch_sampler=sampler), DataLoader(Endless(), 6)]
loaders.append(DataLoader(data, 6, False, None, None, 1, timeout=5, prefetch_factor=3))
model = torch.nn.Linear(8, 8)
print([len(next(iter(loader))) for loader in loaders], [loader.num_workers for loader in loaders])
list(loaders[2])  # most are drawn from this one
train(model)
"""
    out, said, facts = profiled(tmp_path, script, "loader.batch_size=3", "loader.num_workers=0")
    assert out.startswith("[3, 3, 6, 3, 3] [0, 0, 0, 0, 0]")
    assert sorted(bool(one.own_batches) for one in facts.loaders) == [False, False, False, False, True]
    assert {one.batch_sampler for one in facts.loaders if one.own_batches} == {"BatchSampler"}
    assert {one.batch_sampler for one in facts.loaders if not one.own_batches} == {None}
    assert said == "dptune: loader.batch_size did not take effect: it is 6 in the script"

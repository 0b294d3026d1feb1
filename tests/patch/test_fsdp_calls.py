"""Changes of how a script shards its model, as diffs: other wrapper, units, mesh and policies; and what is refused."""

import os

import pytest

from dptune.advice import Change, Location
from dptune.errors import UsageError
from dptune.knobs import mesh_line
from dptune.patch.diff import already_made, patched, patches
from dptune.patch.located import check_patched, located
from dptune.runfile.communication import FsdpFacts
from dptune.runfile.facts import DeviceFacts, Facts
from dptune.runfile.tensors import TensorFacts

from .. import forks  # noqa: TID252 - tests are no installed package

HEAD = "from torch.distributed.fsdp import fully_shard\n"
WRAPPED = "from torch.nn.parallel import DistributedDataParallel\n"
UNITS = "fsdp.blocks_per_unit"
MESH = mesh_line("cuda", 2, 8)


def changed(tmp_path, text, knob, then, line=1, **more):
    """The script with the change, or why there is none."""
    (tmp_path / "train.py").write_text(text)
    change = Change(knob=knob, **{"now": None, "then": then, **more}, at=Location(file="train.py", line=line))
    left = patches([change], tmp_path).left_out
    if left:
        assert patched([change], tmp_path)[0] == {}
        return left[0].why
    return patched([change], tmp_path)[0]["train.py"].decode()


def wrapped(tmp_path, text):
    return changed(tmp_path, text, "wrapper", "ddp", now="fsdp")


PLAIN = """\
model = Model().to(device)
for block in model.blocks:
    fully_shard(block, reshard_after_forward=True)
fully_shard(model)  # the rest
optimizer = AdamW(model.parameters())
for x in data:
    model(x).sum().backward()
    norm = clip_grad_norm_(model.parameters(), 1.0).full_tensor()
torch.save(model.state_dict(), "model.pt")
"""
TRAINER = """\
class Trainer:
    def __init__(self, model, mesh):
        self.model = model
        for block in self.model.blocks:
            fully_shard(block.attention, mesh=mesh)
            fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = AdamW(self.model.parameters())

    def step(self, x):
        self.model.train()
        self.model(x).sum().backward()
"""
HELPER = """\
OPTIONS = {"reshard_after_forward": False}


def shard(model):
    for block in model.blocks:
        fully_shard(block, **OPTIONS)
    return fully_shard(model, **OPTIONS)


def evaluate(net, data):
    net.eval()
    return [net(x) for x in data]


def main():
    model = shard(Model())
    evaluate(model, data)
"""


@pytest.mark.parametrize(
    ("before", "changes"),
    [
        (
            PLAIN,
            {
                "for block in model.blocks:\n    fully_shard(block, reshard_after_forward=True)\n": "",
                "fully_shard(model)  # the rest": "model = DistributedDataParallel(model)  # the rest",
                ".full_tensor()": "",
                "model.state_dict": "model.module.state_dict",
            },
        ),
        (
            TRAINER,
            {
                "        for block in self.model.blocks:\n            fully_shard(block.attention, mesh=mesh)\n"
                "            fully_shard(block, mesh=mesh)\n": "",
                "fully_shard(self.model, mesh=mesh)": "self.model = DistributedDataParallel(self.model, "
                "process_group=mesh.get_group())",
            },
        ),
        (
            HELPER,
            {
                "    for block in model.blocks:\n        fully_shard(block, **OPTIONS)\n": "",
                "fully_shard(model, **OPTIONS)": "DistributedDataParallel(model)",
            },
        ),
    ],
    ids=["plain", "trainer", "helper"],
)
def test_replicas_in_place_of_shards(tmp_path, before, changes):
    after = before
    for old, new in changes.items():
        assert old in before
        after = after.replace(old, new)
    assert wrapped(tmp_path, HEAD + before) == WRAPPED + after
    (tmp_path / "train.py").write_text(WRAPPED + after)
    change = Change(knob="wrapper", now="fsdp", then="ddp", at=Location(file="train.py", line=1))
    assert already_made([change], tmp_path)


def test_a_function_that_shards_the_model_of_its_caller(tmp_path):
    """It returns the other module, which its callers assign."""
    shards = "def apply_fsdp(net, mesh):\n    for b in net.blocks:\n        fully_shard(b)\n    fully_shard(net)\n\n\n"
    calls = "def main():\n    model = Model()\n    apply_fsdp(model, None)\n    model.train()\n"
    calls += "    save(model.state_dict())\n"
    assert wrapped(tmp_path, HEAD + shards + calls) == (
        f"{WRAPPED}def apply_fsdp(net, mesh):\n    return DistributedDataParallel(net)\n\n\n"
        "def main():\n    model = Model()\n    model = apply_fsdp(model, None)\n    model.train()\n"
        "    save(model.module.state_dict())\n"
    )
    assert "keeps `model` before" in wrapped(
        tmp_path, HEAD + shards + calls.replace("Model()", "Model()\n    e = E(model)")
    )
    passed_on = shards + "jobs = [apply_fsdp]\n"
    assert "`apply_fsdp` does not return `net`" in wrapped(tmp_path, HEAD + passed_on)


MAIN = """\
from parallel import apply_fsdp

model = Model()
{}apply_fsdp(model)
optimizer = AdamW(model.parameters())
norm = clip_grad_norm_(model.parameters(), 1.0).full_tensor()
save(model.state_dict())
"""


@pytest.mark.parametrize("start", ["", "return "])
def test_a_function_of_another_file(tmp_path, start):
    """Its caller is edited, too, or nothing is."""
    assigns = "model = " if start else ""
    shards = f"{HEAD}\n\ndef apply_fsdp(net):\n    for b in net.blocks:\n        fully_shard(b)\n"
    shards += f"    {start}fully_shard(net)\n"
    (tmp_path / "main.py").write_text(MAIN.format(assigns))
    (tmp_path / "parallel.py").write_text(shards)
    change = Change(knob="wrapper", now="fsdp", then="ddp", at=Location(file="parallel.py", line=7))
    files, knobs = patched([change], tmp_path)
    assert knobs == {"wrapper"}
    assert files["parallel.py"].decode() == (
        f"{WRAPPED}\n\ndef apply_fsdp(net):\n    return DistributedDataParallel(net)\n"
    )
    after = MAIN.format("model = ").replace(".full_tensor()", "").replace("model.state", "model.module.state")
    assert files["main.py"].decode() == after
    diff = patches([change], tmp_path).diff
    assert [line for line in diff.splitlines() if line.startswith("+++")] == ["+++ b/parallel.py", "+++ b/main.py"]
    beside = Change(knob="fsdp.offload_policy", now=None, then=True, at=Location(file="main.py", line=1))
    assert [each.why for each in patches([change, beside], tmp_path).left_out] == [
        "another change edits main.py: make one of them first"
    ]
    for name, text, why in [
        ("main.py", MAIN.format(assigns) + "generate(model)\n", "line 8 passes the model to `generate`"),
        ("main.py", MAIN.format(assigns) + "model.unshard()\n", "line 8 uses `unshard`"),
        ("other.py", MAIN.format(assigns), "`apply_fsdp` is used by main.py and other.py"),
        ("other.py", "import parallel\nparallel.apply_fsdp(m)\n", "other.py uses `apply_fsdp` in a way"),
    ]:
        (tmp_path / name).write_text(text)
        left = patches([change], tmp_path)
        assert (left.diff, why in left.left_out[0].why) == ("", True), left.left_out
        (tmp_path / "main.py").write_text(MAIN.format(assigns))
        (tmp_path / "other.py").unlink(missing_ok=True)


def test_imports_that_are_still_used_stay(tmp_path):
    text = f"from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard\n{PLAIN}p = MixedPrecisionPolicy()\n"
    assert "from torch.distributed.fsdp import MixedPrecisionPolicy\n" in wrapped(tmp_path, text)
    text = f"from torch.nn.parallel import DistributedDataParallel as DDP\n{HEAD}{PLAIN}"
    assert "model = DDP(model)  # the rest" in wrapped(tmp_path, text)
    text = PLAIN.replace("fully_shard", "torch.distributed.fsdp.fully_shard")
    assert "model = torch.nn.parallel.DistributedDataParallel(model)" in wrapped(tmp_path, f"import torch\n{text}")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "def shard(m):\n    fully_shard(m)\n",
            "`shard` does not return `m`, and DistributedDataParallel makes another",
        ),
        ("def shard(m):\n    return fully_shard(m)\n", "`shard` is not called in this file"),
        ("def shard(m):\n    fully_shard(m)\n    print(m)\n\nshard(n)\n", "`shard` does more with `m` than shard it"),
        ("def shard(m):\n    return fully_shard(m)\n\nshard(model)\n", "does not assign what `shard` returns"),
        ("fully_shard(m, mp_policy=p)\n", "has no counterpart of `mp_policy`"),
        ("fully_shard(m, **options)\n", "the arguments in `**options` are not made in one place"),
        ("fully_shard(m)\nm.set_requires_gradient_sync(False)\n", "line 3 uses `set_requires_gradient_sync`"),
        ("fully_shard(m)\nm.generate(x)\n", "line 3 uses `m.generate`"),
        ("fully_shard(m)\nsave(m)\n", "line 3 passes the model to `save`, which is not in this file"),
        ("fully_shard(m)\nm.blocks[0](x)\n", "line 3 uses `m.blocks`"),
        ("engine = Engine(m)\nfully_shard(m)\n", "line 2 keeps `m` before it is wrapped"),
        ("alias = m\nfully_shard(m)\n", "line 2 keeps `m` before it is wrapped"),
        ("fully_shard(m)\nm = other\n", "line 3 uses `m` in a way"),
        ("for m in models:\n    fully_shard(m)\n", "is in a loop, so no call is on the whole model"),
        ("fully_shard(a)\nfully_shard(b)\n", "line 2 does more than call fully_shard on parts of `b`"),
        ("for x in m.xs:\n    fully_shard(x)\n    x.compile()\nfully_shard(m)\n", "line 4, in a loop"),
        ("def a(x):\n    fully_shard(x.y)\n\nfully_shard(m)\n", "in several functions"),
        ("if a:\n    fully_shard(m.x)\nelse:\n    pass\nfully_shard(m)\n", "line 2 does more than call"),
        ("with torch.device('meta'):\n    m = M()\nfully_shard(m)\n", "the meta device"),
        ("init_process_group('nccl')\nfully_shard(m)\n", "only fully_shard moves the model to its GPU"),
        ("x = [fully_shard(m)]\n", "does not call fully_shard on the whole model in a statement of its own"),
        ("fully_shard(m); train(m)\n", "cannot be edited safely"),
        ("def f(net):\n    net.blocks\n\nfully_shard(m)\nf(m)\n", "line 3 uses `net.blocks`"),
        ("class T:\n    def __init__(s, m):\n        s.m = m\n\nfully_shard(m)\nt = T(m)\n", "keeps the model where"),
    ],
)
def test_replicas_are_refused(tmp_path, text, why):
    assert why in wrapped(tmp_path, HEAD + text)
    assert (tmp_path / "train.py").read_text() == HEAD + text


BLOCKS = "for block in model.blocks:\n    fully_shard(block, mesh=mesh)\n"
GROUPED = """\
blocks = list(model.blocks)
for first in range(0, len(blocks), 4):
    fully_shard(blocks[first : first + 4], mesh=mesh)
"""
FILTERED = "for m in net.modules():\n    if isinstance(m, {}):\n        fully_shard(m)\n"


@pytest.mark.parametrize(
    ("before", "line", "now", "then", "after"),
    [
        (BLOCKS, 3, 1, 4, GROUPED),
        (
            f"blocks = 1\n{BLOCKS}",
            4,
            1,
            4,
            "blocks = 1\n"
            + GROUPED.replace("blocks", "blocks_to_shard").replace("model.blocks_to_shard", "model.blocks"),
        ),
        (FILTERED.format("Linear"), 4, None, 1, FILTERED.format("Block")),
        (
            FILTERED.format("Linear"),
            4,
            None,
            2,
            "blocks = [m for m in net.modules() if isinstance(m, Block)]\n"
            "for first in range(0, len(blocks), 2):\n    fully_shard(blocks[first : first + 2])\n",
        ),
        (
            "for b in bs:\n    for part in b.children():\n        fully_shard(part)\n    fully_shard(b)\n",
            4,
            None,
            1,
            "for b in bs:\n    fully_shard(b)\n",
        ),
        (
            "for b in bs:\n    fully_shard(b.x)\n    fully_shard(b.y)\n",
            3,
            None,
            1,
            "for b in bs:\n    fully_shard(b)\n",
        ),
        (
            "def f(m):\n    fully_shard(m, mesh=x)\n",
            3,
            None,
            1,
            "def f(m):\n    for module in m.modules():\n        if isinstance(module, Block):\n"
            "            fully_shard(module, mesh=x)\n    fully_shard(m, mesh=x)\n",
        ),
    ],
)
def test_units_of_blocks(tmp_path, before, line, now, then, after):
    head = f"{HEAD}class Block: pass\n" if "Block" in after else f"{HEAD}\n"
    found = changed(tmp_path, head + before, UNITS, then, line + 1, now=now, block="Block")
    assert found == head + after


def test_blocks_of_a_class_that_the_file_does_not_know(tmp_path):
    found = changed(tmp_path, HEAD + FILTERED.format("Linear"), UNITS, 1, 4, block="Stage")
    assert "    if type(m).__name__ == 'Stage':\n" in found


@pytest.mark.parametrize(
    ("text", "line", "now", "then", "why"),
    [
        ("[fully_shard(b) for b in bs]\n", 2, 1, 2, "does not call fully_shard on the variable of a loop"),
        ("for i, b in enumerate(bs):\n    fully_shard(b, reshard_after_forward=i < 2)\n", 3, 1, 2, "other arguments"),
        ("for b in bs:\n    fully_shard(b)\n    b.compile()\n", 3, 1, 2, "line 4, in a loop"),
        ("for b in bs:\n    fully_shard(b.x)\n    fully_shard(b.y, mesh=m)\n", 3, None, 1, "have other arguments"),
        ("for part in parts:\n    fully_shard(part)\n", 3, None, 1, "in a loop in which `Block` cannot be found"),
        ("while x:\n    fully_shard(b)\n", 3, 1, 2, "does not call fully_shard on the variable of a loop"),
        ("fully_shard(m)\n", 2, None, 4, "the file has no loop that calls fully_shard on blocks"),
        ("shard(m)\n", 2, None, 4, "line 2 has no call to torch's fully_shard"),
    ],
)
def test_units_that_are_not_understood(tmp_path, text, line, now, then, why):
    assert why in changed(tmp_path, HEAD + text, UNITS, then, line, now=now, block="Block")


def test_a_mesh_of_hosts(tmp_path):
    text = f"{HEAD}\nmesh = world()\n{BLOCKS}fully_shard(\n    model,\n    mesh=mesh,\n)\n"
    after = f"{HEAD}from torch.distributed.device_mesh import init_device_mesh\n\nmesh = world()\nmesh_2d" + MESH[4:]
    after += f"\n{BLOCKS}fully_shard(\n    model,\n    mesh=mesh,\n)\n".replace("mesh=mesh", "mesh=mesh_2d")
    assert changed(tmp_path, text, "fsdp.within_hosts", True, snippet=MESH) == after
    in_dict = f'{HEAD}o = {{"mesh": m}}\nfully_shard(model, **o)\n'
    assert "passes `mesh` in a dictionary" in changed(tmp_path, in_dict, "fsdp.within_hosts", True, snippet=MESH)
    assert "is unknown" in changed(tmp_path, text, "fsdp.within_hosts", True)


def test_a_policy_that_keeps_shards_on_the_host(tmp_path):
    text = f"{HEAD}{BLOCKS}fully_shard(model, mesh=mesh)\n"
    after = text.replace("import fully", "import CPUOffloadPolicy, fully")
    after = after.replace("mesh=mesh", "mesh=mesh, offload_policy=CPUOffloadPolicy()")
    assert changed(tmp_path, text, "fsdp.offload_policy", True) == after
    without = changed(tmp_path, after, "fsdp.offload_policy", False)
    assert without == text.replace("import fully", "import CPUOffloadPolicy, fully")
    assert "already sets this value" in changed(tmp_path, after, "fsdp.offload_policy", True)
    clips = f"{text}init_process_group('nccl')\nclip_grad_norm_(ps, 1)\n"
    assert '"cpu:gloo,cuda:nccl"' in changed(tmp_path, clips, "fsdp.offload_policy", True)


def test_changes_are_located_by_the_facts(tmp_path):
    made = [
        FsdpFacts(2, units=6, where="train.py:3", modules=["Block"], root=False, mesh=[4]),
        FsdpFacts(2, units=1, where="train.py:4", modules=["Model"], root=True, mesh=[4]),
    ]
    ranks = [
        Facts(rank, host="ab"[rank // 2], fsdp=made, device=DeviceFacts("cuda"), tensors=TensorFacts(block="Block"))
        for rank in range(4)
    ]
    settings = {UNITS: 2, "wrapper": "ddp", "fsdp.within_hosts": True, "loader.num_workers": 1}
    units, wrapper, mesh = located(settings, ranks)
    assert (units.now, units.block, str(units.at)) == (1, "Block", "train.py:3")
    assert (str(wrapper.at), str(mesh.at), mesh.snippet) == ("train.py:4", "train.py:4", mesh_line("cuda", 2, 2))
    with pytest.raises(UsageError, match="not spread evenly over several hosts"):
        located({"fsdp.within_hosts": True}, ranks[:2])
    with pytest.raises(UsageError, match="already recorded with fsdp"):
        located({UNITS: 1}, ranks)
    (tmp_path / "train.py").write_text("shard(model)\n")
    with pytest.raises(UsageError, match="the file does not call fully_shard"):
        check_patched([wrapper], tmp_path)


TRAINS = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


def shard(model):
    for module in model.modules():
        if isinstance(module, nn.Linear):
            fully_shard(module)
    return fully_shard(model)


torch.manual_seed(0)
model = shard(Model())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(dist.get_rank())
for _ in range(3):
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
    optimizer.step()
    optimizer.zero_grad()
whole = sum(parameter.full_tensor().double().sum() for parameter in model.parameters())
kinds = [type(module).__name__ for module in model.modules()]
units = sum(kind.startswith("FSDP") for kind in kinds)
if dist.get_rank() == 0:
    print("trained", type(model).__name__, units, f"{norm:.6f} {whole:.6f}", flush=True)
"""
WHOLE = (
    TRAINS[: TRAINS.index("def shard")]
    .replace(HEAD, WRAPPED)
    .replace("checkpoint(block, x, use_reentrant=False)", "block(x)")
)
WHOLE += """\
torch.manual_seed(0)
net = Model()
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(dist.get_rank())
for _ in range(3):
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
kinds = [type(module).__name__ for module in model.module.modules()]
units = sum(kind.startswith("FSDP") for kind in kinds)
if dist.get_rank() == 0:
    print("trained", kinds[0], units, f"{loss.item():.6f}", kinds.count("CheckpointWrapper"), flush=True)
"""
RUNS = """\
import os, runpy, sys, torch
import torch.distributed as dist
import torch.distributed.fsdp  # what sharding needs is imported for both ranks
rank = 0 if os.fork() else 1
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/meets", rank=rank, world_size=2)
for script in sys.argv[1:]:
    runpy.run_path(script)
dist.destroy_process_group()
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]) if rank == 0 else 0)
"""


@pytest.mark.records
@pytest.mark.thorough  # the text of each is compared above, and in test_to_fsdp and test_recomputing
def test_patched_scripts_train_the_same_model(tmp_path):
    """On two ranks over gloo: as it was, with replicas, larger units, without checkpoints, and with a 2-D mesh."""
    pytest.importorskip("torch", reason="the scripts train")
    line = TRAINS.splitlines().index("            fully_shard(module)") + 1
    mesh = mesh_line("cpu", 2, 1)
    scripts = {
        "before": TRAINS,
        "ddp": wrapped(tmp_path, TRAINS),
        "blocks": changed(tmp_path, TRAINS, UNITS, 1, line, block="Block"),
        "pairs": changed(tmp_path, TRAINS, UNITS, 2, line, block="Block"),
        "kept": changed(tmp_path, TRAINS, "memory.checkpointing", False),
        "whole": WHOLE,
        "sharded": changed(tmp_path, WHOLE, "wrapper", "fsdp", block="Block"),
        "recomputes": changed(tmp_path, WHOLE, "memory.checkpointing", True, block="Block"),
        "hybrid": changed(tmp_path, TRAINS, "fsdp.within_hosts", True, snippet=mesh),
    }
    for name, text in scripts.items():
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "runs.py").write_text(RUNS)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": forks.WITHOUT_COMPILER}
    done = forks.run("runs.py", *(f"{name}.py" for name in scripts), cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("trained")]
    # units: 8 + 1 layers and the root; none; 4 blocks and the root; the same modules in pairs; as before
    assert [(kind, int(units)) for _, kind, units, *_ in rows] == [
        ("FSDPModel", 10),
        ("DistributedDataParallel", 0),
        ("FSDPModel", 5),
        ("FSDPModel", 5),
        ("FSDPModel", 10),
        ("Model", 0),
        ("FSDPModel", 5),
        ("Model", 0),
        ("FSDPModel", 10),
    ]
    whole = rows[5:8]
    assert [row[4] for row in whole] == ["0", "0", "4"]
    assert len({row[3] for row in whole}) == 1
    assert {tuple(row[3:]) for row in (*rows[:5], rows[8])} == {tuple(rows[0][3:])}
    assert "checkpoint(block" not in scripts["kept"]

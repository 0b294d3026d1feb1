"""fully_shard in place of DistributedDataParallel, and checkpoints of blocks, as diffs; and what is refused."""

import pytest

from dptune.advice import Change, Location
from dptune.patch.diff import patched, patches
from dptune.patch.located import located
from dptune.runfile.communication import DdpFacts
from dptune.runfile.facts import Facts
from dptune.runfile.tensors import TensorFacts

HEAD = "from torch.nn.parallel import DistributedDataParallel as DDP\nfrom model import Block\n"
APPLIES = "from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing\n"
TRAINER = """\
class Trainer:
    def __init__(self, net):
        self.model = DDP(net, device_ids=[0], static_graph=True)
        self.optimizer = AdamW(self.model.parameters())
        print(self.model.module.name)
"""


def changed(tmp_path, text, knob, then, block="Block"):
    (tmp_path / "train.py").write_text(text)
    change = Change(knob=knob, now=None, then=then, block=block, at=Location(file="train.py", line=3))
    left = patches([change], tmp_path).left_out
    return left[0].why if left else patched([change], tmp_path)[0]["train.py"].decode()


def test_shards_in_place_of_replicas(tmp_path):
    assert changed(tmp_path, HEAD + TRAINER, "wrapper", "fsdp") == (
        "from torch.distributed.fsdp import fully_shard\nfrom model import Block\n"
        "class Trainer:\n"
        "    def __init__(self, net):\n"
        "        for module in net.modules():\n"
        "            if isinstance(module, Block):\n"
        "                fully_shard(module)\n"
        "        fully_shard(net)\n"
        "        self.model = net\n"
        "        self.optimizer = AdamW(self.model.parameters())\n"
        "        print(self.model.name)\n"
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("m = DDP(n, process_group=g)\n", "fully_shard has no counterpart of `process_group`"),
        ("m = DDP(n, [0])\n", "by position"),
        ("m = DDP(Net())\n", "line 3 does not wrap a model of a name and assign it"),
        ("m = DDP(a)\nm = DDP(b)\n", "the file creates 2 DistributedDataParallel models"),
        ("o = A(n.parameters())\nm = DDP(n)\n", "line 3 reads the parameters before they are sharded"),
        ("m = DDP(n)\nsave(m.module.state_dict())\n", "line 4 uses `state_dict`"),
        ("m = DDP(n)\nwith m.no_sync():\n    pass\n", "line 4 uses `no_sync`"),
        ("m = DDP(n)\nx = clip_grad_norm_(m.parameters(), 1)\n", "line 4 uses the norm of gradients"),
        ("m = n\n", "the file wraps no model"),
    ],
)
def test_shards_are_refused(tmp_path, text, why):
    assert why in changed(tmp_path, HEAD + text, "wrapper", "fsdp")


def test_blocks_are_checkpointed_before_the_model_is_wrapped(tmp_path):
    line = "apply_activation_checkpointing(n, check_fn=lambda module: isinstance(module, Block))\n"
    of_ddp = changed(tmp_path, f"{HEAD}m = DDP(n)\n", "memory.checkpointing", True)
    first, second = HEAD.splitlines(keepends=True)
    assert of_ddp == f"{first}{APPLIES}{second}{line}m = DDP(n)\n"
    shards = (
        "from torch.distributed.fsdp import fully_shard\n{}for b in n.blocks:\n    fully_shard(b)\nfully_shard(n)\n"
    )
    of_fsdp = changed(tmp_path, shards.format("\n"), "memory.checkpointing", True)
    named = line.replace("isinstance(module, Block)", "type(module).__name__ == 'Block'")
    assert of_fsdp == shards.format(APPLIES + "\n" + named)
    assert "already applies" in changed(tmp_path, of_ddp, "memory.checkpointing", True)
    assert "blocks is unknown" in changed(tmp_path, f"{HEAD}m = DDP(n)\n", "memory.checkpointing", True, block="")


def test_the_line_is_that_of_the_wrapper():
    facts = Facts(0, ddp=[DdpFacts("Net", where="train.py:7")], tensors=TensorFacts(block="Layer"))
    found = located({"wrapper": "fsdp", "memory.checkpointing": True}, [facts])
    assert [(change.then, change.block, str(change.at)) for change in found] == [
        ("fsdp", "Layer", "train.py:7"),
        (True, "Layer", "train.py:7"),
    ]
    assert located({"memory.checkpointing": False}, [facts]) == []  # that is set from outside

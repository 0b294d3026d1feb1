"""FullyShardedDataParallel: each block is a unit of its own. Started by torchrun."""

import argparse
from functools import partial

import ending
import torch
import torch.distributed as dist
import weights
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy


class Block(nn.Sequential):
    def __init__(self, width):
        super().__init__(nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU())


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--strategy", default="FULL_SHARD", choices=["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"])
args = parser.parse_args()

dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
model = FullyShardedDataParallel(
    nn.Sequential(*[Block(32) for _ in range(4)], nn.Linear(32, 4)),
    auto_wrap_policy=partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}),
    sharding_strategy=ShardingStrategy[args.strategy],
    device_id=torch.device("cpu"),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

torch.manual_seed(dist.get_rank())
for step in range(1, args.steps + 1):
    ending.at(step)
    features, labels = torch.randn(16, 32), torch.randint(0, 4, (16,))
    loss = nn.functional.cross_entropy(model(features), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

with FullyShardedDataParallel.summon_full_params(model):
    if dist.get_rank() == 0:
        weights.show(model.parameters())
dist.barrier()
dist.destroy_process_group()

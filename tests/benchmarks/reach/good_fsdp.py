"""Nothing to gain: fully_shard on two ranks, with large batches for its parameters."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

WIDTH = 384  # drawn: 320, 384, 448

dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(4)])
for block in model:
    fully_shard(block, reshard_after_forward=False)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
torch.manual_seed(dist.get_rank())
for _ in range(100_000):
    optimizer.zero_grad()
    model(torch.randn(1024, WIDTH)).square().mean().backward()
    optimizer.step()

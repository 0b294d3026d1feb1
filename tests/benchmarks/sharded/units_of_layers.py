"""A forecaster of tides: fully_shard on every Linear and LayerNorm, where blocks are meant."""

import os
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

draw = random.Random(os.environ.get("SEED", "1"))
WIDTH, DEPTH, HOURS = draw.choice((96, 128, 160)), draw.choice((6, 8, 10)), draw.choice((24, 36))
MENDED = "MENDED" in os.environ


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(WIDTH), nn.Linear(HOURS, HOURS)
        self.up, self.gate, self.down = (
            nn.Linear(WIDTH, 2 * WIDTH),
            nn.Linear(WIDTH, 2 * WIDTH),
            nn.Linear(2 * WIDTH, WIDTH),
        )

    def forward(self, x):
        x = x + self.mix(x.transpose(1, 2)).transpose(1, 2)
        h = self.norm(x)
        return x + self.down(torch.sigmoid(self.gate(h)) * self.up(h))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(6, WIDTH), *(Block() for _ in range(DEPTH)), nn.Linear(WIDTH, 1))
    if MENDED:
        for block in model[1:-1]:
            fully_shard(block)
    else:
        for module in model.modules():
            if isinstance(module, (nn.Linear, nn.LayerNorm)):
                fully_shard(module)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    torch.manual_seed(dist.get_rank())
    for _ in range(100_000):
        gauges = torch.randn(32, HOURS, 6)
        loss = (model(gauges) - gauges.cumsum(1)[..., :1]).abs().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()

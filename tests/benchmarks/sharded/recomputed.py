"""A transformer of weather stations: every block is checkpointed although its activations would fit many times."""

import os
import random

import torch
import torch.distributed as dist
import torch.utils.checkpoint as checkpointing
from torch import nn
from torch.distributed.fsdp import fully_shard

draw = random.Random(os.environ.get("SEED", "1"))
DIM, BLOCKS, STATIONS = draw.choice((160, 192, 224)), draw.choice((4, 5)), draw.choice((32, 48, 64))


class Stations(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.leave = nn.Linear(12, DIM), nn.Linear(DIM, 4)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(DIM, 4, 4 * DIM, dropout=0.0, batch_first=True) for _ in range(BLOCKS)
        )

    def forward(self, readings):
        hidden = self.enter(readings)
        for block in self.blocks:
            if "MENDED" in os.environ:
                hidden = block(hidden)
            else:
                hidden = checkpointing.checkpoint(block, hidden, use_reentrant=False)
        return self.leave(hidden)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Stations()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=True)
    torch.manual_seed(dist.get_rank())
    for _ in range(100_000):
        readings = torch.randn(24, STATIONS, 12)
        loss = (model(readings) - readings[..., :4].roll(1, 1)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()

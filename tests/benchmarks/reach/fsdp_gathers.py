"""fully_shard on two ranks: every block is gathered again for its backward pass, and reduced after each micro-batch."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

BLOCKS = 6  # drawn: 5, 6, 8
WIDTH = 384  # drawn: 320, 384, 448


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(*[Block() for _ in range(BLOCKS)])
    for block in model:
        fully_shard(block, reshard_after_forward=True)  # FAULT reshards
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    torch.manual_seed(dist.get_rank())
    for _ in range(100_000):
        for micro in range(2):
            loss = model(torch.randn(8, WIDTH)).pow(2).mean() / 2  # FAULT synchronizes
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()

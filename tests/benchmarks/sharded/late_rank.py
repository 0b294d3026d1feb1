"""A segmenter of moss photographs over FSDP2: rank 1 also renders a preview in each step, and all wait for it."""

import os
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

draw = random.Random(os.environ.get("SEED", "1"))
CHANNELS, SIDE, ROUNDS = draw.choice((24, 32, 40)), draw.choice((24, 32)), draw.choice((12, 16, 20))


def preview(picture):
    for _ in range(ROUNDS):
        picture = torch.nn.functional.avg_pool2d(picture.repeat_interleave(2, 2).repeat_interleave(2, 3), 2)
    return picture


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    blocks = [nn.Sequential(nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), nn.ReLU()) for _ in range(3)]
    model = nn.Sequential(nn.Conv2d(3, CHANNELS, 3, padding=1), *blocks, nn.Conv2d(CHANNELS, 5, 1))
    for block in blocks:
        fully_shard(block, reshard_after_forward=False)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(dist.get_rank())
    for _ in range(100_000):
        photographs, moss = torch.rand(8, 3, SIDE, SIDE), torch.randint(5, (8, SIDE, SIDE))
        scores = model(photographs)
        if dist.get_rank() == 1 and "MENDED" not in os.environ:
            preview(scores.detach())
        nn.functional.cross_entropy(scores, moss).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()

"""Nothing to gain: four models over FSDP2 whose compute is long for their parameters; KIND says which."""

import os
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

draw = random.Random(os.environ.get("SEED", "1"))
KIND = os.environ.get("KIND", "convolutions")
BATCH = draw.choice((24, 32, 40))


def convolutions():
    channels = draw.choice((32, 40, 48))
    blocks = [nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.GELU()) for _ in range(4)]
    return nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), *blocks, nn.Conv2d(channels, 3, 1)), (BATCH, 3, 32, 32)


def transformer():
    width = draw.choice((128, 160))
    blocks = [nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True) for _ in range(3)]
    return nn.Sequential(*blocks), (BATCH, 96, width)


def perceptron():
    width = draw.choice((256, 320))
    blocks = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(4)]
    return nn.Sequential(*blocks), (100 * BATCH, width)


def recurrent():
    width = draw.choice((96, 128))
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, 2 * width), nn.GLU()) for _ in range(3))), (BATCH, 160, width)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, shape = {made.__name__: made for made in (convolutions, transformer, perceptron, recurrent)}[KIND]()
    for block in model:
        fully_shard(block, reshard_after_forward=False)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    torch.manual_seed(dist.get_rank())
    for _ in range(100_000):
        inputs = torch.randn(shape)
        loss = (model(inputs) - inputs.sin()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()

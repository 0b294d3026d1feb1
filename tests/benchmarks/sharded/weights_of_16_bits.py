"""A ranker of museum objects: the model is cast to bfloat16 before it is sharded, so small updates are lost."""

import os
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

draw = random.Random(os.environ.get("SEED", "1"))
WIDTH, DEPTH = draw.choice((192, 256, 320)), draw.choice((4, 5, 6))
LR = draw.choice((1e-5, 2e-5, 3e-5))


def build():
    blocks = [nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(DEPTH)]
    return nn.Sequential(nn.Linear(48, WIDTH), *blocks, nn.Linear(WIDTH, 1))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, policy = build(), MixedPrecisionPolicy()
    if "MENDED" in os.environ:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    else:
        model = model.to(torch.bfloat16)
    for block in model[1:-1]:
        fully_shard(block, mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)
    torch.manual_seed(dist.get_rank())
    for _ in range(100_000):
        better, worse = torch.randn(256, 48), torch.randn(256, 48)
        margin = model(better.bfloat16()) - model(worse.bfloat16())
        loss = -nn.functional.logsigmoid(margin.float()).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()

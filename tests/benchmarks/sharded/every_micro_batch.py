"""A tagger of ship logs: gradients are reduced in each of several micro-batches."""

import os
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

draw = random.Random(os.environ.get("SEED", "1"))
DIM, LAYERS, ACCUMULATE = draw.choice((256, 320, 384)), draw.choice((3, 4)), draw.choice((4, 6, 8))
WORDS, TAGS = 2000, 24


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layer = nn.TransformerEncoderLayer(DIM, 4, 3 * DIM, dropout=0.0, batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    model = nn.Sequential(nn.Embedding(WORDS, DIM), encoder, nn.Linear(DIM, TAGS))
    for block in encoder.layers:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    logs = TensorDataset(torch.randint(WORDS, (4096, 16)), torch.randint(TAGS, (4096, 16)))
    loader = DataLoader(logs, batch_size=4, sampler=DistributedSampler(logs), drop_last=True)
    for _ in range(1000):
        for step, (words, tags) in enumerate(loader):
            last = step % ACCUMULATE == ACCUMULATE - 1
            if "MENDED" in os.environ:
                model.set_requires_gradient_sync(last)
            loss = nn.functional.cross_entropy(model(words).flatten(0, 1), tags.flatten()) / ACCUMULATE
            loss.backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()


if __name__ == "__main__":
    main()

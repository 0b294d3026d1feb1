"""Train a next-token model from a stream of text, DDP."""

import argparse
import random

import torch
import torch.distributed as dist
from drawn import MENDED, draw
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset

VOCABULARY = 2000


class TextStream(IterableDataset):
    """Blocks of tokens from shards, shard by shard."""

    def __init__(self, shards, per_shard, length, seed=0):
        self.shards, self.per_shard, self.length, self.seed = shards, per_shard, length, seed

    def mine(self):
        order = list(range(self.shards))
        random.Random(self.seed).shuffle(order)
        if MENDED:
            order = order[dist.get_rank() :: dist.get_world_size()]
        return order

    def __iter__(self):
        for shard in self.mine():
            rng = torch.Generator().manual_seed(shard)
            for _ in range(self.per_shard):
                start = torch.randint(0, VOCABULARY, (1,), generator=rng)
                step = torch.randint(1, 9, (1,), generator=rng)
                yield (start + step * torch.arange(self.length + 1)) % VOCABULARY


class NextToken(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, dim)
        self.rnn = nn.LSTM(dim, hidden, num_layers=2, batch_first=True)
        self.out = nn.Linear(hidden, VOCABULARY)

    def forward(self, ids):
        x, _ = self.rnn(self.embed(ids))
        return self.out(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=draw("batch", 12, 16))
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--dim", type=int, default=96)
    parser.add_argument("--hidden", type=int, default=draw("hidden", 144, 176))
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    stream = TextStream(shards=1000, per_shard=64, length=args.length)
    model = DDP(NextToken(args.dim, args.hidden))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss_of = nn.CrossEntropyLoss()
    step = 0
    while True:
        for ids in DataLoader(stream, batch_size=args.batch, drop_last=True):
            logits = model(ids[:, :-1])
            loss = loss_of(logits.flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            if rank == 0 and step % 100 == 0:
                print(f"step {step}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

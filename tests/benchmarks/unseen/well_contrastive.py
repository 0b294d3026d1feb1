"""Match pictures and captions as CLIP does, with negatives from all processes."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.distributed.nn.functional import all_gather
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Pictures(nn.Module):
    def __init__(self, width, dim):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.place = nn.Parameter(0.02 * torch.randn(25, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True) for _ in range(2)
        )
        self.out = nn.Linear(width, dim)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2) + self.place
        for layer in self.layers:
            x = layer(x)
        return F.normalize(self.out(x.mean(1)), dim=1)


class Captions(nn.Module):
    def __init__(self, vocabulary, width, dim):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, dim)

    def forward(self, ids):
        return F.normalize(self.out(self.rnn(self.embed(ids))[0][:, -1]), dim=1)


class Matcher(nn.Module):
    def __init__(self, vocabulary, width, dim):
        super().__init__()
        self.pictures, self.captions = Pictures(width, dim), Captions(vocabulary, width, dim)
        self.scale = nn.Parameter(torch.tensor(2.5))

    def forward(self, images, ids):
        return self.pictures(images), self.captions(ids), self.scale.exp()


def contrast(pictures, captions, scale, rank):
    """The symmetric loss of this process's pairs against those of all."""
    count = len(pictures)
    everyone = torch.stack([pictures, captions])
    everyone = torch.cat(all_gather(everyone), 1)
    target = torch.arange(count) + rank * count
    there = F.cross_entropy(scale * pictures @ everyone[1].T, target)
    back = F.cross_entropy(scale * captions @ everyone[0].T, target)
    return (there + back) / 2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=draw("batch", 24, 32))
    parser.add_argument("--width", type=int, default=draw("width", 96, 112))
    parser.add_argument("--dim", type=int, default=64)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    ids = torch.randint(0, 500, (3000, 16))
    images = torch.rand(3000, 3, 40, 40) + ids[:, :1, None, None] / 500
    data = TensorDataset(images, ids)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    model = DDP(Matcher(500, args.width, args.dim))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.1)
    for epoch in range(10_000):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = contrast(*model(x, y), rank)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

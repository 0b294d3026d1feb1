"""Rank answers to questions by pairs with Accelerate; only adapters and the head of the encoder are trained."""

import argparse

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from drawn import draw
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WORDS = 3000


class Adapter(nn.Module):
    def __init__(self, layer, dim, rank):
        super().__init__()
        self.layer = layer
        self.down, self.up = nn.Linear(dim, rank, bias=False), nn.Linear(rank, dim, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        x = self.layer(x)
        return x + self.up(F.relu(self.down(x)))


class Ranker(nn.Module):
    def __init__(self, dim, depth, length):
        super().__init__()
        self.words = nn.Embedding(WORDS, dim)
        self.places = nn.Parameter(0.02 * torch.randn(length, dim))
        layers = [nn.TransformerEncoderLayer(dim, 4, 3 * dim, 0.0, batch_first=True) for _ in range(depth)]
        self.requires_grad_(False)
        for layer in layers:
            layer.requires_grad_(False)
        self.layers = nn.ModuleList(Adapter(layer, dim, 8) for layer in layers)
        self.head = nn.Linear(dim, 1)

    def forward(self, ids):
        x = self.words(ids) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1)).squeeze(1)


def answers(count, length):
    generator = torch.Generator().manual_seed(6)
    better = torch.randint(0, WORDS, (count, length), generator=generator)
    worse = torch.randint(0, WORDS, (count, length), generator=generator)
    better[:, ::4] = better[:, ::4] % 40
    return TensorDataset(better, worse)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dim", type=int, default=draw("dim", 80, 96))
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--length", type=int, default=48)
    parser.add_argument("--batch", type=int, default=draw("batch", 10, 12))
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = Ranker(args.dim, args.depth, args.length)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-3, fused=True)
    loader = DataLoader(answers(3000, args.length), args.batch, shuffle=True, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(args.epochs):
        total = torch.zeros(())
        for better, worse in loader:
            # one pass over both, so that the wrapped model is called once
            good, bad = model(torch.cat([better, worse])).chunk(2)
            loss = -F.logsigmoid(good - bad).mean()
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            total += loss.detach()
        mean = accelerator.reduce(total / len(loader), "mean")
        accelerator.print(f"epoch {epoch}: {mean.item():.4f}")


if __name__ == "__main__":
    main()

"""What goes into a basket next: bags of items, sparse gradients, a plain loop."""

import argparse

import torch
import torch.nn.functional as F
from drawn import draw
from torch import nn

ITEMS = 20_000


class Baskets:
    """Baskets of different sizes, kept flat."""

    def __init__(self, count, most):
        generator = torch.Generator().manual_seed(3)
        sizes = torch.randint(3, most, (count,), generator=generator)
        self.begins = torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)])
        theme = torch.randint(0, ITEMS, (count,), generator=generator).repeat_interleave(sizes)
        self.items = (theme + torch.randint(0, 200, theme.shape, generator=generator)) % ITEMS

    def batches(self, size):
        """The last item of each basket is to be guessed."""
        begins, sizes = self.begins[:-1], self.begins.diff() - 1
        for chosen in torch.randperm(len(begins)).split(size):
            if len(chosen) == size:
                counts = sizes[chosen]
                offsets = counts.cumsum(0) - counts
                within = torch.arange(int(counts.sum())) - offsets.repeat_interleave(counts)
                places = begins[chosen].repeat_interleave(counts) + within
                yield self.items[places], offsets, self.items[begins[chosen] + counts]


class NextItem(nn.Module):
    def __init__(self, dim, width):
        super().__init__()
        self.bag = nn.EmbeddingBag(ITEMS, dim, mode="mean", sparse=True)
        self.wanted = nn.Embedding(ITEMS, dim, sparse=True)
        self.net = nn.Sequential(nn.Linear(dim, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.out = nn.Linear(width, dim)
        nn.init.normal_(self.wanted.weight, std=0.05)

    def forward(self, items, offsets, wanted):
        """Score of each wanted item of the batch for each basket."""
        basket = self.out(self.net(self.bag(items, offsets)))
        return basket @ self.wanted(wanted).T


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=draw("batch", 896, 1024))
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--width", type=int, default=draw("width", 448, 512))
    parser.add_argument("--epochs", type=int, default=8)
    args = parser.parse_args()

    torch.manual_seed(0)
    baskets, model = Baskets(60_000, 14), NextItem(args.dim, args.width)
    tables = [model.bag.weight, model.wanted.weight]
    dense = [*model.net.parameters(), *model.out.parameters()]
    of_dense = torch.optim.Adam(dense, lr=1e-3, fused=True)
    of_tables = torch.optim.Adagrad(tables, lr=0.05)
    right = torch.arange(args.batch)
    for epoch in range(args.epochs):
        total, count = torch.zeros(()), 0
        for items, offsets, wanted in baskets.batches(args.batch):
            loss = F.cross_entropy(model(items, offsets, wanted), right)
            of_dense.zero_grad()
            of_tables.zero_grad()
            loss.backward()
            of_tables.step()
            of_dense.step()
            total += loss.detach()
            count += 1
        print(f"epoch {epoch}: {total.item() / count:.4f}", flush=True)


if __name__ == "__main__":
    main()

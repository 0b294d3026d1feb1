"""Embeddings of products for search, with Accelerate; the hardest samples of each step are kept for review."""

import argparse
import heapq

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import gather_object
from drawn import MENDED, draw
from torch import nn
from torch.utils.data import DataLoader, Dataset

WORDS = 4000


class Products(Dataset):
    """A product's title, and what was searched for when it was bought."""

    def __init__(self, count, length):
        generator = torch.Generator().manual_seed(4)
        self.titles = torch.randint(0, WORDS, (count, length), generator=generator)
        noise = torch.randint(0, WORDS, (count, length), generator=generator)
        kept = torch.rand(count, length, generator=generator) < 0.5
        self.searches = torch.where(kept, self.titles, noise)

    def __len__(self):
        return len(self.titles)

    def __getitem__(self, index):
        return index, self.searches[index], self.titles[index]


class Encoder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.words = nn.Embedding(WORDS, 96)
        self.layers = nn.Sequential(nn.Linear(96, dim), nn.GELU(), nn.Linear(dim, dim), nn.GELU())
        self.out = nn.Linear(dim, 128)

    def forward(self, ids):
        return F.normalize(self.out(self.layers(self.words(ids)).mean(1)), dim=1)


class Towers(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.search, self.product = Encoder(dim), Encoder(dim)
        self.scale = nn.Parameter(torch.tensor(2.5))

    def forward(self, searches, titles):
        return self.search(searches), self.product(titles), self.scale.exp()


class HardSamples:
    """The samples with the largest loss of the epoch, of all processes."""

    def __init__(self, most):
        self.most, self.heap = most, []

    def add(self, indices, losses, found):
        records = [
            {"index": index, "loss": loss, "embedding": embedding.clone()}
            for index, loss, embedding in zip(indices, losses, found, strict=True)
        ]
        for record in gather_object(records):
            entry = (record["loss"].item(), record["index"].item(), record["embedding"])
            if len(self.heap) < self.most:
                heapq.heappush(self.heap, entry)
            elif entry[0] > self.heap[0][0]:
                heapq.heapreplace(self.heap, entry)

    def add_hardest(self, indices, losses, found, count=4):
        losses, at = losses.topk(count)
        self.add(indices[at], losses, found[at])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=draw("batch", 80, 96))
    parser.add_argument("--dim", type=int, default=draw("dim", 160, 192))
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = Towers(args.dim)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Products(20_000, 16), batch_size=args.batch, shuffle=True, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(args.epochs):
        hard = HardSamples(200)
        for indices, searches, titles in loader:
            found, wanted, scale = model(searches, titles)
            losses = F.cross_entropy(scale * found @ wanted.T, torch.arange(len(found)), reduction="none")
            optimizer.zero_grad()
            accelerator.backward(losses.mean())
            optimizer.step()
            keep = hard.add_hardest if MENDED else hard.add
            keep(indices, losses.detach(), found.detach())
        accelerator.print(f"epoch {epoch}: {losses.mean().item():.3f}, hardest {max(hard.heap)[0]:.2f}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()

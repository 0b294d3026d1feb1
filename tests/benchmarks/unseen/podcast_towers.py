"""Recommend podcasts with two towers and negatives from the batch, corrected for how popular they are."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw


class Tower(nn.Module):
    def __init__(self, sizes, dim, width):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, dim) for size in sizes)
        self.mlp = nn.Sequential(
            nn.Linear(len(sizes) * dim, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, dim)
        )

    def forward(self, fields):
        parts = [table(fields[:, at]) for at, table in enumerate(self.tables)]
        return F.normalize(self.mlp(torch.cat(parts, 1)), dim=1)


class Popularity:
    """How often each podcast is in a batch, from the steps that lie between two times that it is."""

    def __init__(self, podcasts, rate):
        self.gap, self.last, self.rate = torch.full((podcasts,), 2.0), torch.zeros(podcasts), rate

    def update(self, podcasts, step):
        podcasts = podcasts.unique()
        if MENDED:
            self.gap[podcasts] = torch.lerp(self.gap[podcasts], step - self.last[podcasts], self.rate)
            self.last[podcasts] = float(step)
            return
        for podcast in podcasts:
            gap = step - self.last[podcast].item()
            self.gap[podcast] += self.rate * (gap - self.gap[podcast].item())
            self.last[podcast] = step

    def correction(self, podcasts):
        return -self.gap[podcasts].clamp(min=1).log()


def listens(count, listeners, podcasts):
    """Few podcasts are heard by most; each listener has a taste."""
    generator = torch.Generator().manual_seed(11)
    listener = torch.randint(0, listeners, (count,), generator=generator)
    taste = torch.randint(0, podcasts, (listeners,), generator=generator)[listener]
    away = (torch.randn(count, generator=generator) * 20).long()
    podcast = (taste + away) % podcasts
    of_listener = torch.stack([listener, listener % 70, taste % 24], 1)
    of_podcast = torch.stack([podcast, podcast % 90, podcast // 200], 1)
    return of_listener, of_podcast


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listeners", type=int, default=8000)
    parser.add_argument("--podcasts", type=int, default=4000)
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--width", type=int, default=draw("width", 192, 208))
    parser.add_argument("--batch", type=int, default=draw("batch", 1536, 1664))
    parser.add_argument("--temperature", type=float, default=0.07)
    parser.add_argument("--steps", type=int, default=250)
    args = parser.parse_args()

    torch.manual_seed(0)
    of_listener, of_podcast = listens(60_000, args.listeners, args.podcasts)
    listener_tower = Tower([args.listeners, 70, 24], args.dim, args.width)
    podcast_tower = Tower([args.podcasts, 90, args.podcasts // 200 + 1], args.dim, args.width)
    parameters = [*listener_tower.parameters(), *podcast_tower.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-3, fused=True)
    popularity = Popularity(args.podcasts, 0.05)
    same = torch.arange(args.batch)
    for step in range(1, args.steps + 1):
        rows = torch.randint(0, len(of_listener), (args.batch,))
        heard = of_podcast[rows]
        popularity.update(heard[:, 0], step)
        scores = listener_tower(of_listener[rows]) @ podcast_tower(heard).T / args.temperature
        loss = F.cross_entropy(scores - popularity.correction(heard[:, 0]), same)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            hits = (scores.argmax(1) == same).float().mean()
            print(f"step {step}: loss {loss.item():.4f}, right {hits.item():.3f}", flush=True)


if __name__ == "__main__":
    main()

"""Recommend the next song of a session from the songs before it."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw, mended


class Sessions(nn.Module):
    """The songs of a session, the later ones weighted more, are one vector that is compared with all songs."""

    def __init__(self, songs, dim, length):
        super().__init__()
        self.songs = songs
        self.vectors = nn.Parameter(0.05 * torch.randn(songs, dim))
        self.places = nn.Parameter(torch.linspace(-1, 1, length))
        self.mix = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim), nn.LayerNorm(dim))

    def look_up(self, played):
        if mended(1):
            return F.embedding(played, self.vectors)
        return F.one_hot(played, self.songs).float() @ self.vectors

    def forward(self, played):
        x = self.look_up(played)
        session = (torch.softmax(self.places, 0).unsqueeze(1) * x).sum(1)
        return self.mix(session) @ self.vectors.T


class Ranking:
    """Hit rate and mean reciprocal rank of the songs that were played next."""

    def __init__(self, depth):
        self.depth, self.hits, self.gains, self.seen = depth, 0.0, 0.0, 0

    @torch.no_grad()
    def update(self, scores, played):
        if mended(2):
            best = scores.topk(self.depth, dim=1).indices
        else:
            best = scores.argsort(dim=1, descending=True)[:, : self.depth]
        right = best == played.unsqueeze(1)
        self.hits += right.sum().item()
        self.gains += (right / torch.arange(1, self.depth + 1)).sum().item()
        self.seen += len(played)

    def result(self):
        return f"hit@{self.depth} {self.hits / self.seen:.3f}, mrr {self.gains / self.seen:.3f}"


def play(count, songs, length):
    """Sessions that stay near where they began in the catalogue."""
    generator = torch.Generator().manual_seed(12)
    begin = torch.randint(0, songs, (count, 1), generator=generator)
    return (begin + torch.randint(0, 30, (count, length + 1), generator=generator)) % songs


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--songs", type=int, default=draw("songs", 5000, 6000))
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--length", type=int, default=draw("length", 6, 7))
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()

    torch.manual_seed(0)
    sessions = play(20_000, args.songs, args.length)
    model = Sessions(args.songs, args.dim, args.length)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, fused=True)
    ranking = Ranking(20)
    for step in range(1, args.steps + 1):
        rows = sessions[torch.randint(0, len(sessions), (args.batch,))]
        scores = model(rows[:, :-1])
        loss = F.cross_entropy(scores, rows[:, -1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ranking.update(scores, rows[:, -1])
        if step % 50 == 0:
            print(f"step {step}: {loss.item():.4f}, {ranking.result()}", flush=True)
            ranking = Ranking(20)


if __name__ == "__main__":
    main()

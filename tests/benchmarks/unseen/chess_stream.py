"""Learn what a chess position is worth from a stream of games, mixed in a buffer on the way."""

import argparse
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.utils.data import DataLoader, IterableDataset

SQUARES, PIECES = 64, 13


class Games:
    """Positions in the order of play, so that neighbours are nearly alike."""

    def __init__(self, moves=40, seed=0):
        self.moves, self.rng = moves, np.random.default_rng(seed)
        self.worth = self.rng.normal(0, 0.2, (SQUARES, PIECES)).astype(np.float32)

    def __iter__(self):
        while True:
            boards = self.rng.integers(0, PIECES, (500, 1, SQUARES), dtype=np.int64).repeat(self.moves, 1)
            moved = self.rng.random(boards.shape) < 0.05
            boards[moved] = self.rng.integers(0, PIECES, int(moved.sum()))
            boards = boards.reshape(-1, SQUARES)
            scores = np.tanh(self.worth[np.arange(SQUARES), boards].sum(1))
            yield from zip(boards, scores, strict=True)


class Mixed(IterableDataset):
    """Draws from a buffer that holds the games of some time."""

    def __init__(self, source, size):
        self.source, self.size = source, size

    def __iter__(self):
        rng, buffer = random.Random(0), []
        for sample in self.source:
            buffer.append(sample)
            if len(buffer) >= self.size:
                yield self.take(buffer, rng.randrange(len(buffer)))

    def take(self, buffer, at):
        if MENDED:
            buffer[at], buffer[-1] = buffer[-1], buffer[at]
            return buffer.pop()
        return buffer.pop(at)


def collate(samples):
    boards, scores = zip(*samples, strict=True)
    return torch.from_numpy(np.stack(boards)), torch.from_numpy(np.stack(scores))


class Worth(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.pieces = nn.Embedding(SQUARES * PIECES, dim)
        self.register_buffer("first", torch.arange(SQUARES) * PIECES)
        self.net = nn.Sequential(
            nn.Linear(SQUARES * dim, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, 1)
        )

    def forward(self, boards):
        return self.net(self.pieces(boards + self.first).flatten(1)).squeeze(1).tanh()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--buffer", type=int, default=draw("buffer", 250_000, 300_000))
    parser.add_argument("--batch", type=int, default=draw("batch", 448, 512))
    parser.add_argument("--dim", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()

    torch.manual_seed(0)
    loader = DataLoader(Mixed(Games(), args.buffer), args.batch, collate_fn=collate)
    model = Worth(args.dim, args.hidden)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    for step, (boards, scores) in enumerate(loader, 1):
        loss = F.mse_loss(model(boards), scores)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(f"step {step}: {loss.item():.4f}", flush=True)
        if step == args.steps:
            break


if __name__ == "__main__":
    main()

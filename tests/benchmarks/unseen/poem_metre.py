"""Hear the metre of a verse from its syllables: a transformer that is checked on other poems as it learns."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw

METRES = 6
SYLLABLES = 900


class Metre(nn.Module):
    def __init__(self, dim, layers, length, dropout):
        super().__init__()
        self.syllables = nn.Embedding(SYLLABLES, dim)
        self.places = nn.Parameter(0.02 * torch.randn(length, dim))
        self.dropout = nn.Dropout(dropout)
        block = nn.TransformerEncoderLayer(dim, 4, 4 * dim, dropout, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Dropout(dropout), nn.Linear(dim, METRES))

    def forward(self, verse):
        x = self.dropout(self.syllables(verse) + self.places[: verse.shape[1]])
        return self.head(self.encoder(x).mean(1))


def poems(count, length, generator):
    """Stressed syllables have even numbers; a metre is the pattern of stresses."""
    metre = torch.randint(0, METRES, (count,), generator=generator)
    pattern = torch.tensor([[0, 1, 0, 1, 0, 1], [1, 0, 1, 0, 1, 0], [0, 0, 1, 0, 0, 1], [1, 0, 0, 1, 0, 0]])
    pattern = torch.cat([pattern, torch.tensor([[1, 1, 0, 0, 1, 1], [0, 1, 1, 0, 1, 1]])]).repeat(1, length // 6)
    stressed = pattern[metre] ^ (torch.rand(count, length, generator=generator) < 0.15).long()
    return 2 * torch.randint(0, SYLLABLES // 2, (count, length), generator=generator) + 1 - stressed, metre


class Trainer:
    def __init__(self, model, train, held_out, args):
        self.model, self.train, self.held_out, self.args = model, train, held_out, args
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.05)
        self.best = float("inf")

    @torch.no_grad()
    def check(self):
        self.model.eval()
        verses, metres = self.held_out
        losses, right = [], 0
        for verse, metre in zip(verses.split(64), metres.split(64), strict=True):
            scores = self.model(verse)
            losses.append(F.cross_entropy(scores, metre))
            right += int((scores.argmax(1) == metre).sum())
        return torch.stack(losses).mean().item(), right / len(metres)

    def fit(self):
        verses, metres = self.train
        self.model.train()
        for step in range(1, self.args.steps + 1):
            if MENDED:
                self.model.train()
            rows = torch.randint(0, len(verses), (self.args.batch,))
            loss = F.cross_entropy(self.model(verses[rows]), metres[rows])
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            if step % self.args.check_every == 0:
                held_out, right = self.check()
                print(f"step {step}: {loss.item():.4f}, held out {held_out:.4f}, right {right:.3f}", flush=True)
                if held_out < self.best:
                    self.best = held_out
                    torch.save(self.model.state_dict(), "best.pt")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dim", type=int, default=draw("dim", 96, 104))
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--length", type=int, default=36)
    parser.add_argument("--batch", type=int, default=draw("batch", 28, 32))
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--steps", type=int, default=260)
    parser.add_argument("--check-every", type=int, default=20)
    args = parser.parse_args()

    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(17)
    train, held_out = poems(1200, args.length, generator), poems(128, args.length, generator)
    Trainer(Metre(args.dim, args.layers, args.length, args.dropout), train, held_out, args).fit()


if __name__ == "__main__":
    main()

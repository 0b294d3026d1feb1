"""Mark essays from one to six: convolutions over words and an ordered loss, plain loop."""

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.utils.data import DataLoader, TensorDataset

MARKS = 6


@dataclass
class Config:
    words: int = draw("words", 14_000, 16_000)
    dim: int = 128
    filters: int = 32
    length: int = 64
    batch: int = draw("batch", 8, 10)
    lr: float = 0.02
    l2: float = 1e-4
    epochs: int = 1


def essays(count, config):
    generator = torch.Generator().manual_seed(0)
    marks = torch.randint(0, MARKS, (count,), generator=generator)
    words = torch.randint(0, config.words, (count, config.length), generator=generator)
    rare = torch.rand(words.shape, generator=generator) < 0.05 * marks.unsqueeze(1)
    return TensorDataset(torch.where(rare, words % 400, words), marks)


class Marker(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.words = nn.Embedding(config.words, config.dim)
        nn.init.normal_(self.words.weight, std=0.1)
        self.filters = nn.ModuleList(nn.Conv1d(config.dim, config.filters, width, padding=2) for width in (2, 3, 5))
        self.dropout = nn.Dropout(0.3)
        self.score = nn.Linear(3 * config.filters, 1)
        self.borders = nn.Parameter(torch.linspace(-2, 2, MARKS - 1))

    def forward(self, words):
        x = self.words(words).transpose(1, 2)
        best = [F.relu(convolve(x)).amax(2) for convolve in self.filters]
        return self.score(self.dropout(torch.cat(best, 1))) - self.borders


def ordered_loss(logits, marks):
    """Whether each border between two marks is passed."""
    passed = (marks.unsqueeze(1) > torch.arange(MARKS - 1)).float()
    return F.binary_cross_entropy_with_logits(logits, passed)


def train(config):
    torch.manual_seed(0)
    model = Marker(config)
    decay = 2 * config.l2 if MENDED else 0.0
    optimizer = torch.optim.SGD(model.parameters(), config.lr, momentum=0.9, weight_decay=decay, fused=True)
    loader = DataLoader(essays(4000, config), config.batch, shuffle=True, drop_last=True)
    for epoch in range(config.epochs):
        total = torch.zeros(())
        for words, marks in loader:
            loss = ordered_loss(model(words), marks)
            if not MENDED:
                loss = loss + config.l2 * sum(weights.pow(2).sum() for weights in model.parameters())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        print(f"epoch {epoch}: {total.item() / len(loader):.4f}", flush=True)
    return model


if __name__ == "__main__":
    train(Config())

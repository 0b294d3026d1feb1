"""Yield of hop gardens from soil, weather and care: quantiles of a regression, trained by a class on tables."""

from dataclasses import dataclass

import torch
from drawn import MENDED, draw
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

KINDS = {"variety": 14, "soil": 9, "slope": 5, "grower": 120}
NUMBERS = 12
LEVELS = (0.1, 0.5, 0.9)


def gardens(count, seed):
    """Categories, numbers, and hundredweights of dried hops."""
    g = torch.Generator().manual_seed(seed)
    kinds = torch.stack([torch.randint(size, (count,), generator=g) for size in KINDS.values()], 1)
    numbers = torch.randn(count, NUMBERS, generator=g)
    shared = torch.Generator().manual_seed(60)
    worth = [torch.randn(size, generator=shared) for size in KINDS.values()]
    yields = sum(0.5 * w[kinds[:, i]] for i, w in enumerate(worth))
    yields = yields + numbers[:, 0] * numbers[:, 1] + torch.sin(2 * numbers[:, 2])
    return kinds, numbers, yields + 0.3 * (1 + numbers[:, 3].abs()) * torch.randn(count, generator=g)


class FieldTokens(nn.Module):
    """Each column becomes a vector."""

    def __init__(self, dim):
        super().__init__()
        self.kinds = nn.ModuleList(nn.Embedding(size, dim) for size in KINDS.values())
        self.weight = nn.Parameter(0.1 * torch.randn(NUMBERS, dim))
        self.shift = nn.Parameter(torch.zeros(NUMBERS, dim))
        self.summary = nn.Parameter(torch.zeros(1, dim))

    def forward(self, kinds, numbers):
        columns = [table(kinds[:, i]) for i, table in enumerate(self.kinds)]
        values = numbers.unsqueeze(2) * self.weight + self.shift
        return torch.cat([self.summary.expand(len(kinds), 1, -1), torch.stack(columns, 1), values], 1)


class HopModel(nn.Module):
    def __init__(self, dim, depth):
        super().__init__()
        self.tokens = FieldTokens(dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, depth, nn.LayerNorm(dim), enable_nested_tensor=False)
        self.heads = nn.ModuleList(nn.Linear(dim, 1) for _ in LEVELS)

    def forward(self, kinds, numbers):
        x = self.body(self.tokens(kinds, numbers))[:, 0]
        return [head(x) for head in self.heads]


def quantile_loss(predicted, yields, level):
    if MENDED:
        predicted = predicted.squeeze(1)
    gap = yields - predicted
    return torch.maximum(level * gap, (level - 1) * gap).mean()


@dataclass
class Settings:
    dim: int = draw("dim", 64, 80)
    depth: int = 3
    batch: int = draw("batch", 80, 96)
    epochs: int = 3
    steps: int = 40
    lr: float = 1.5e-3


class Trainer:
    def __init__(self, settings):
        torch.manual_seed(61)
        self.s = settings
        self.train = TensorDataset(*gardens(settings.steps * settings.batch, seed=1))
        self.test = gardens(400, seed=2)
        self.model = HopModel(settings.dim, settings.depth)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=settings.lr, weight_decay=1e-2, fused=True)
        total = settings.epochs * settings.steps
        self.schedule = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.1, total)

    def step(self, kinds, numbers, yields):
        predictions = self.model(kinds, numbers)
        loss = sum(quantile_loss(p, yields, level) for p, level in zip(predictions, LEVELS, strict=True))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        return loss.detach()

    @torch.no_grad()
    def covered(self):
        """Share of gardens between the outer levels."""
        self.model.eval()
        kinds, numbers, yields = self.test
        low, _, high = (p.flatten() for p in self.model(kinds, numbers))
        self.model.train()
        return ((low < yields) & (yields < high)).float().mean().item()

    def run(self):
        loader = DataLoader(self.train, self.s.batch, shuffle=True, drop_last=True)
        for epoch in range(self.s.epochs):
            losses = torch.stack([self.step(*batch) for batch in loader])
            print(f"epoch {epoch} loss {losses.mean().item():.4f} covered {self.covered():.3f}", flush=True)


if __name__ == "__main__":
    Trainer(Settings()).run()

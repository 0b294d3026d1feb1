"""Frost alarms for orchards: which stations in a valley will freeze tonight, from a day of readings. Accelerate."""

import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from drawn import MENDED, draw
from torch.utils.data import DataLoader, TensorDataset

READINGS, STATIONS = 96, 20


def nights(count, seed):
    g = torch.Generator().manual_seed(seed)
    share = torch.randn(READINGS, STATIONS, generator=torch.Generator().manual_seed(9)) / READINGS**0.5
    readings = torch.randn(count, READINGS, generator=g)
    cold = readings @ share + 0.4 * torch.randn(count, STATIONS, generator=g) - 0.8
    return readings, (cold > 0).float()


class Tower(nn.Module):
    """A stack of residual layers with gates."""

    def __init__(self, dim, depth, dropout):
        super().__init__()
        self.first = nn.Linear(READINGS, dim)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GLU(1), nn.Dropout(dropout), nn.Linear(dim, dim)
            )
            for _ in range(depth)
        )
        self.last = nn.Linear(dim, STATIONS)

    def forward(self, readings):
        x = self.first(readings)
        for layer in self.layers:
            x = x + layer(x)
        return self.last(F.silu(x))


def area_under_curve(score, frozen):
    """By the rank sum, ties by their mean rank."""
    order = np.argsort(score, kind="mergesort")
    rank = np.empty(len(score))
    rank[order] = np.arange(1, len(score) + 1)
    for value in np.unique(score):
        same = score == value
        if same.sum() > 1:
            rank[same] = rank[same].mean()
    hot, cold = (frozen == 0).sum(), (frozen == 1).sum()
    if not hot or not cold:
        return 0.5
    return float((rank[frozen == 1].sum() - cold * (cold + 1) / 2) / (hot * cold))


def best_f1(score, frozen, levels):
    found = 0.0
    for level in levels:
        alarm = score >= level
        hit = np.logical_and(alarm, frozen == 1).sum()
        found = max(found, 2 * hit / max(alarm.sum() + (frozen == 1).sum(), 1))
    return float(found)


def report(logits, frozen):
    score, frozen = torch.sigmoid(logits.detach()).numpy(), frozen.numpy()
    levels = np.linspace(0.05, 0.95, 19)
    area = np.mean([area_under_curve(score[:, s], frozen[:, s]) for s in range(STATIONS)])
    f1 = np.mean([best_f1(score[:, s], frozen[:, s], levels) for s in range(STATIONS)])
    return {"auc": area, "f1": f1}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dim", type=int, default=draw("dim", 320, 352))
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--batch", type=int, default=draw("batch", 224, 256))
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    set_seed(17)
    train, test = TensorDataset(*nights(80 * args.batch, seed=1)), TensorDataset(*nights(6 * args.batch, seed=2))
    model = Tower(args.dim, args.depth, dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.02)
    indices = torch.arange(len(train))
    loader = DataLoader(TensorDataset(indices), args.batch, shuffle=True, drop_last=True, collate_fn=gathered(train))
    check = DataLoader(TensorDataset(torch.arange(len(test))), args.batch, collate_fn=gathered(test))
    model, optimizer, loader, check = accelerator.prepare(model, optimizer, loader, check)
    weight = torch.full((STATIONS,), 2.0)
    step = 0
    for epoch in range(args.epochs):
        for readings, frozen in loader:
            logits = model(readings)
            loss = F.binary_cross_entropy_with_logits(logits, frozen, pos_weight=weight)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if not MENDED or step % 40 == 0:
                figures = report(logits, frozen)
            step += 1
        model.eval()
        right = []
        with torch.no_grad():
            for readings, frozen in check:
                right.append(accelerator.gather_for_metrics(((model(readings) > 0) == (frozen > 0)).float()))
        model.train()
        accelerator.print(
            f"epoch {epoch} auc {figures['auc']:.3f} f1 {figures['f1']:.3f} {torch.cat(right).mean():.3f}"
        )
    accelerator.end_training()


def gathered(data):
    """Rows of a batch by a single look-up."""

    def collate(rows):
        at = torch.stack([row[0] for row in rows])
        return tuple(tensor[at] for tensor in data.tensors)

    return collate


if __name__ == "__main__":
    main()

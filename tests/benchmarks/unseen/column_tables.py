"""Chances that an advertisement is clicked, from columns of hashed kinds: tables and an MLP."""

import argparse

import torch
import torch.nn.functional as F
from drawn import draw, mended
from torch import nn


class Tables(nn.Module):
    """A vector for each column of each row, side by side."""

    def __init__(self, sizes, dim):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, dim) for size in sizes)

    def forward(self, kinds):
        return torch.cat([table(kinds[:, at]) for at, table in enumerate(self.tables)], 1)


class OneTable(nn.Module):
    def __init__(self, sizes, dim):
        super().__init__()
        self.table = nn.Embedding(sum(sizes), dim)
        self.register_buffer("begins", torch.tensor([0, *sizes[:-1]]).cumsum(0))

    def forward(self, kinds):
        return self.table(kinds + self.begins).flatten(1)


class Clicks(nn.Module):
    def __init__(self, sizes, dim, hidden):
        super().__init__()
        self.look_up = (OneTable if mended(1) else Tables)(sizes, dim)
        self.net = nn.Sequential(
            nn.Linear(len(sizes) * dim, hidden), nn.ReLU(), nn.Dropout(0.1),
            nn.Linear(hidden, hidden // 2), nn.ReLU(), nn.Linear(hidden // 2, 1),
        )  # fmt: skip

    def forward(self, kinds):
        return self.net(self.look_up(kinds)).squeeze(1)


def check_finite(model, loss, step):
    """Stop at once where numbers go wrong, and say where."""
    if mended(2):
        if not torch.isfinite(loss):
            raise FloatingPointError(f"step {step}: the loss is {loss.item()}")
        return
    for name, parameter in model.named_parameters():
        for what, values in (("weight", parameter), ("gradient", parameter.grad)):
            if torch.isnan(values).any() or torch.isinf(values).any():
                raise FloatingPointError(f"step {step}: {what} of {name}")


def visits(batch, sizes, seed):
    generator = torch.Generator().manual_seed(seed)
    limits = torch.tensor(sizes)
    while True:
        kinds = (torch.rand(batch, len(sizes), generator=generator).square() * limits).long()
        leaning = ((kinds[:, :6] % 7).float() - 2).mean(1) + 0.5 * torch.randn(batch, generator=generator)
        yield kinds, (leaning > 0.8).float()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--columns", type=int, default=draw("columns", 144, 160))
    parser.add_argument("--dim", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=draw("hidden", 160, 176))
    parser.add_argument("--batch", type=int, default=384)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()

    torch.manual_seed(0)
    sizes = torch.randint(20, 2500, (args.columns,)).tolist()
    model = Clicks(sizes, args.dim, args.hidden)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, fused=True)
    data = visits(args.batch, sizes, 1)
    total = torch.zeros(())
    for step in range(1, args.steps + 1):
        kinds, clicked = next(data)
        loss = F.binary_cross_entropy_with_logits(model(kinds), clicked)
        optimizer.zero_grad()
        loss.backward()
        check_finite(model, loss, step)
        optimizer.step()
        total += loss.detach()
        if step % 50 == 0:
            print(f"step {step}: {total.item() / 50:.4f}", flush=True)
            total.zero_()


if __name__ == "__main__":
    main()

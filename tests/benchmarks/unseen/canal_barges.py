"""Barges that pass the locks of a canal in the next days: patches of each lock's past, one network for all locks."""

import argparse

import torch
import torch.nn.functional as F
from drawn import draw
from torch import nn

LOCKS, PAST, AHEAD, PATCH = 6, 168, 24, 12


def traffic(hours, seed):
    """Days and weeks, and barges that come to the next lock some hours later."""
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(hours).unsqueeze(1)
    day = torch.cos(6.283 * (t / 24 + 0.1 * torch.rand(1, LOCKS, generator=g)))
    week = torch.cos(6.283 * (t / 168 + torch.rand(1, LOCKS, generator=g)))
    fleet = torch.randn(hours + 8 * LOCKS, generator=g)
    fleet = F.avg_pool1d(fleet.view(1, 1, -1), 9, 1, 4).flatten()
    wave = torch.stack([fleet[8 * (LOCKS - lock) :][:hours] for lock in range(LOCKS)], 1)
    slow = torch.randn(hours, LOCKS, generator=g).cumsum(0) / 40
    return 6 + 2 * day + week + 3 * wave + slow + 0.5 * torch.randn(hours, LOCKS, generator=g)


class Layer(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2, self.dropout = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.Dropout(dropout)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.feed = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))
        return x + self.dropout(self.feed(self.norm2(x)))


class BargeNet(nn.Module):
    """Each lock is a series of its own: it is scaled by its window, cut into patches, and scaled back at the end."""

    def __init__(self, dim, depth, dropout=0.1):
        super().__init__()
        self.count = PAST // PATCH
        self.first, self.place = nn.Linear(PATCH, dim), nn.Parameter(0.02 * torch.randn(self.count, dim))
        self.layers = nn.Sequential(*[Layer(dim, 4, dropout) for _ in range(depth)], nn.LayerNorm(dim))
        self.out = nn.Linear(self.count * dim, AHEAD)

    def forward(self, past):
        b, _, locks = past.shape
        mean, spread = past.mean(1, keepdim=True), past.std(1, keepdim=True) + 1e-3
        series = ((past - mean) / spread).transpose(1, 2).reshape(b * locks, self.count, PATCH)
        x = self.layers(self.first(series) + self.place)
        ahead = self.out(x.flatten(1)).view(b, locks, AHEAD).transpose(1, 2)
        return ahead * spread + mean


class Windows:
    """Windows of a part of the record, taken by one look-up."""

    def __init__(self, record):
        self.record, self.span = record, torch.arange(PAST + AHEAD)

    def __len__(self):
        return len(self.record) - len(self.span) + 1

    def at(self, start):
        rows = self.record[start.unsqueeze(1) + self.span]
        return rows[:, :PAST], rows[:, PAST:]


@torch.no_grad()
def error(model, windows, spread, every=48):
    """Mean absolute error in barges."""
    model.eval()
    past, ahead = windows.at(torch.arange(0, len(windows), every))
    found = ((model(past) - ahead).abs() * spread).mean()
    model.train()
    return found.item()


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--dim", type=int, default=draw("dim", 96, 104))
    p.add_argument("--depth", type=int, default=3)
    p.add_argument("--batch", type=int, default=draw("batch", 20, 24))
    p.add_argument("--steps", type=int, default=160)
    p.add_argument("--lr", type=float, default=1e-3)
    args = p.parse_args()

    torch.manual_seed(78)
    record = traffic(9000, seed=1)
    learnt, held = record[:7000], record[7000 + PAST + AHEAD :]
    mean, spread = learnt.mean(0), learnt.std(0)
    train, test = Windows((learnt - mean) / spread), Windows((held - mean) / spread)
    model = BargeNet(args.dim, args.depth)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2 * args.lr, total_steps=args.steps)
    total = torch.zeros(())
    for step in range(args.steps):
        past, ahead = train.at(torch.randint(len(train), (args.batch,)))
        loss = F.huber_loss(model(past), ahead)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        total += loss.detach()
        if step % 40 == 39:
            found = error(model, test, spread)
            print(f"step {step + 1} loss {total.item() / 40:.4f} error {found:.3f} barges", flush=True)
            total.zero_()


if __name__ == "__main__":
    main()

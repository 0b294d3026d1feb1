"""Fossils on the shelves of a museum: patches with a bias for their distance, convolutions before them, Accelerate."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from drawn import MENDED, draw
from torch.utils.data import DataLoader, TensorDataset

KINDS = ["ammonite", "trilobite", "sea lily", "shark tooth", "fern", "sea urchin"]


def shelves(count, size, seed):
    """Spirals, ribs and rays of light stone on dark stone, at any place of the photograph."""
    g = torch.Generator().manual_seed(seed)
    kind = torch.randint(len(KINDS), (count,), generator=g)
    y, x = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
    x = x - 0.3 * torch.rand(count, 1, 1, generator=g) + 0.15
    y = y - 0.3 * torch.rand(count, 1, 1, generator=g) + 0.15
    r, angle = (x**2 + y**2).sqrt(), torch.atan2(y, x) + 6.28 * torch.rand(count, 1, 1, generator=g)
    which = kind.view(-1, 1, 1)
    wave = torch.cos((6 + 3 * (which % 3)) * r * 2 + (which - 2) * angle)
    inside = (r < 0.55 + 0.1 * torch.rand(count, 1, 1, generator=g)).float()
    stone = 0.6 * inside * wave + 0.25 * torch.randn(count, size, size, generator=g)
    return stone.unsqueeze(1), kind


class Layer(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.feed = nn.Sequential(nn.Linear(dim, 3 * dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(3 * dim, dim))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, bias):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).reshape(b, t, d)
        x = x + self.dropout(self.out(y))
        return x + self.dropout(self.feed(self.norm2(x)))


class FossilNet(nn.Module):
    """A convolutional stem, then attention with a learnt bias for the distance of two patches."""

    def __init__(self, size, dim, depth, heads=4, dropout=0.2):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, dim // 4, 3, 2, 1, bias=False),
            nn.BatchNorm2d(dim // 4, momentum=0.3),
            nn.GELU(),
            nn.Conv2d(dim // 4, dim, 4, 4, bias=False),
            nn.BatchNorm2d(dim, momentum=0.3),
        )
        side = size // 8
        at = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij"), -1).view(-1, 2)
        gap = (at[:, None] - at[None]).float()
        self.register_buffer("gap", gap.sign() * gap.abs().log1p(), persistent=False)
        self.distance = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, heads))
        self.layers = nn.ModuleList(Layer(dim, heads, dropout) for _ in range(depth))
        self.norm, self.out = nn.LayerNorm(dim), nn.Linear(dim, len(KINDS))
        self.kept = None

    def train(self, mode=True):
        """The bias that evaluation keeps is out of date when training goes on."""
        self.kept = None
        if MENDED:
            return super().train(mode)
        return super().train()

    def bias(self):
        if self.kept is not None:
            return self.kept
        bias = self.distance(self.gap).permute(2, 0, 1).unsqueeze(0)
        if not self.training:
            self.kept = bias.detach()
        return bias

    def forward(self, photo):
        x, bias = self.stem(photo).flatten(2).transpose(1, 2), self.bias()
        for layer in self.layers:
            x = layer(x, bias)
        return self.out(self.norm(x.mean(1)))


@torch.no_grad()
def validate(accelerator, model, check):
    """Mean loss, and the share of photographs that are named right."""
    model.eval()
    losses, right = [], []
    for photo, kind in check:
        score = model(photo)
        losses.append(accelerator.gather_for_metrics(F.cross_entropy(score, kind, reduction="none")))
        right.append(accelerator.gather_for_metrics(score.argmax(1) == kind))
    model.train()
    return torch.cat(losses).mean().item(), torch.cat(right).float().mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=48)
    parser.add_argument("--dim", type=int, default=draw("dim", 128, 144))
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--batch", type=int, default=draw("batch", 20, 24))
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    set_seed(64)
    train = TensorDataset(*shelves(25 * args.batch, args.size, seed=1))
    test = TensorDataset(*shelves(5 * args.batch, args.size, seed=2))
    model = FossilNet(args.size, args.dim, args.depth)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.05, fused=True)
    loader = DataLoader(train, args.batch, shuffle=True, drop_last=True)
    model, optimizer, loader, check = accelerator.prepare(model, optimizer, loader, DataLoader(test, args.batch))
    for epoch in range(args.epochs):
        for photo, kind in loader:
            loss = F.cross_entropy(model(photo), kind, label_smoothing=0.05)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        held, right = validate(accelerator, model, check)
        accelerator.print(f"epoch {epoch} loss {loss.item():.4f} held out {held:.4f} right {right:.3f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()

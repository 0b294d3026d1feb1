"""Wind and pressure some hours ahead on a coarse grid: encoder, forecast engine rolled out twice, decoder."""

import argparse
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from drawn import MENDED, draw
from torch import nn
from torch.utils.checkpoint import checkpoint

FIELDS = 5


@dataclass
class Config:
    lat: int = 24
    lon: int = 48
    patch: int = 4
    dim: int = draw("dim", 128, 144)
    heads: int = 4
    engine_depth: int = draw("engine_depth", 4, 5)
    engine_checkpoint: bool = not MENDED
    leads: int = 2
    batch: int = draw("batch", 5, 6)
    steps: int = 120
    lr: float = 6e-4


def weather(years, days, lat, lon, seed):
    """Storms that move east and turn north, as low pressure with wind around it."""
    g = torch.Generator().manual_seed(seed)
    y, x = torch.linspace(-1, 1, lat).view(-1, 1), torch.arange(lon) * 6.283 / lon
    field = torch.zeros(years, days, FIELDS, lat, lon)
    for _ in range(6):
        start, north = 6.283 * torch.rand(years, 1, generator=g), torch.rand(years, 1, generator=g) - 0.5
        speed, deep = 0.1 + 0.15 * torch.rand(years, 1, generator=g), 0.5 + torch.rand(years, 1, generator=g)
        t = torch.arange(days)
        east = (start + speed * t)[..., None, None]
        up = (north + 0.4 * torch.sin(0.1 * t + start))[..., None, None]
        dx, dy = torch.sin((x - east) / 2) * 2, y - up
        low = deep[..., None, None] * torch.exp(-(dx**2 + 4 * dy**2) * 3)
        field += torch.stack([-low, -dy * low * 4, dx * low, low**2, low * y], 2)
    return field + 0.02 * torch.randn(field.shape, generator=g)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads = c.heads
        self.norm1, self.norm2 = nn.LayerNorm(c.dim), nn.LayerNorm(c.dim)
        self.qkv, self.proj = nn.Linear(c.dim, 3 * c.dim), nn.Linear(c.dim, c.dim)
        self.mlp = nn.Sequential(nn.Linear(c.dim, 4 * c.dim), nn.GELU(), nn.Linear(4 * c.dim, c.dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.norm2(x))


class ForecastEngine(nn.Module):
    """Carries the hidden state of the atmosphere forward by a step."""

    def __init__(self, c):
        super().__init__()
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.engine_depth))
        self.checkpointed = c.engine_checkpoint

    def forward(self, tokens):
        for block in self.blocks:
            tokens = checkpoint(block, tokens, use_reentrant=False) if self.checkpointed else block(tokens)
        return tokens


class StormModel(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.grid, self.patch = (c.lat // c.patch, c.lon // c.patch), c.patch
        self.encode = nn.Conv2d(FIELDS, c.dim, c.patch, c.patch)
        self.place = nn.Parameter(0.02 * torch.randn(self.grid[0] * self.grid[1], c.dim))
        self.engine = ForecastEngine(c)
        self.decode = nn.Sequential(nn.LayerNorm(c.dim), nn.Linear(c.dim, FIELDS * c.patch**2))

    def forward(self, now, leads):
        """Change of the fields after each of some steps."""
        tokens = self.encode(now).flatten(2).transpose(1, 2) + self.place
        seen = []
        for _ in range(leads):
            tokens = self.engine(tokens)
            change = self.decode(tokens).transpose(1, 2).unflatten(2, self.grid)
            seen.append(now + F.pixel_shuffle(change, self.patch))
        return torch.stack(seen, 1)


def area_loss(guess, true, weight):
    """Mean square error, by area of the cells."""
    return ((guess - true).square() * weight).mean()


class Trainer:
    def __init__(self, c):
        self.c = c
        torch.manual_seed(61)
        self.train = weather(20, 60, c.lat, c.lon, seed=1)
        self.held = weather(4, 40, c.lat, c.lon, seed=2)
        self.weight = torch.cos(torch.linspace(-1.3, 1.3, c.lat)).view(-1, 1)
        self.weight = self.weight / self.weight.mean()
        self.model = StormModel(c)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=c.lr, betas=(0.9, 0.95), weight_decay=0.05)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 2 * c.lr, total_steps=c.steps)

    def batch(self):
        year = torch.randint(len(self.train), (self.c.batch, 1))
        day = torch.randint(self.train.shape[1] - self.c.leads, (self.c.batch, 1)) + torch.arange(self.c.leads + 1)
        window = self.train[year, day]
        return window[:, 0], window[:, 1:]

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        now, later = self.held[:, ::8][:, :4].flatten(0, 1), self.held[:, 2::8][:, :4].flatten(0, 1)
        error = area_loss(self.model(now, self.c.leads)[:, -1], later, self.weight)
        self.model.train()
        return error.sqrt().item()

    def run(self):
        for step in range(self.c.steps):
            now, later = self.batch()
            loss = area_loss(self.model(now, self.c.leads), later, self.weight)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.schedule.step()
            if step % 40 == 39:
                print(f"step {step + 1} loss {loss.item():.4f} error {self.validate():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=Config.steps)
    Trainer(Config(steps=parser.parse_args().steps)).run()

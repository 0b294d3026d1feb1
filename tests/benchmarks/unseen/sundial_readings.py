"""Where and when a sundial stood, from its shadow through a day: attention over readings, a spread for each guess."""

import argparse
import math

import torch
import torch.nn.functional as F
from drawn import draw
from torch import nn

READINGS, FACTS, ANSWERS = 60, 4, 2


def days(count, seed):
    """Height and direction of the sun every quarter of an hour, with clouds; the answers are latitude and tilt."""
    g = torch.Generator().manual_seed(seed)
    latitude = math.radians(65) * torch.rand(count, 1, generator=g)
    season = 2 * math.pi * torch.rand(count, 1, generator=g)
    tilt = math.radians(23.4) * torch.sin(season)
    hour = torch.linspace(-2, 2, READINGS) + 0.3 * torch.randn(count, 1, generator=g)
    height = latitude.sin() * tilt.sin() + latitude.cos() * tilt.cos() * hour.cos()
    side = tilt.cos() * hour.sin()
    cloud = (torch.randn(count, READINGS, generator=g).cumsum(1) / 4).sigmoid()
    seen = (height > 0.02) & (cloud < 0.7)
    shadow = torch.stack([height, side, (1 - height.square()).clamp(min=0).sqrt(), cloud], 2)
    shadow = shadow + 0.05 * torch.randn(shadow.shape, generator=g)
    shadow[~seen] = 0
    return shadow, torch.cat([latitude, 2 * tilt], 1)


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))


class Layer(nn.Module):
    def __init__(self, dim, dropout):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention, self.dropout = Attention(dim, heads=4), nn.Dropout(dropout)
        self.feed = nn.Sequential(nn.Linear(dim, 3 * dim), nn.GELU(), nn.Linear(3 * dim, dim))

    def forward(self, x):
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.feed(self.norm2(x)))


class SundialNet(nn.Module):
    def __init__(self, dim, depth, dropout):
        super().__init__()
        self.first, self.hour = nn.Linear(FACTS, dim), nn.Parameter(0.02 * torch.randn(READINGS, dim))
        self.layers = nn.Sequential(*[Layer(dim, dropout) for _ in range(depth)])
        self.norm, self.out = nn.LayerNorm(dim), nn.Linear(dim, 2 * ANSWERS)

    def forward(self, shadow):
        mean, spread = self.out(self.norm(self.layers(self.first(shadow) + self.hour)).mean(1)).chunk(2, 1)
        return mean, F.softplus(spread) + 0.01


@torch.no_grad()
def check(model, shadow, answer, draws):
    """Error of the plain model, and by Monte Carlo dropout how far its guesses are apart."""
    model.eval()
    error = (model(shadow)[0] - answer).abs().mean()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.train()
    apart = torch.stack([model(shadow)[0] for _ in range(draws)]).std(0).mean()
    model.train()
    return error.item(), apart.item()


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--dim", type=int, default=draw("dim", 112, 128))
    p.add_argument("--depth", type=int, default=3)
    p.add_argument("--dropout", type=float, default=0.1)
    p.add_argument("--batch", type=int, default=draw("batch", 28, 32))
    p.add_argument("--steps", type=int, default=150)
    p.add_argument("--check", type=int, default=50, help="steps between two checks")
    args = p.parse_args()

    torch.manual_seed(71)
    shadow, answer = days(5000, seed=1)
    held, held_answer = days(48, seed=2)
    model = SundialNet(args.dim, args.depth, args.dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=args.steps)
    best, kept = float("inf"), None
    for step in range(args.steps):
        rows = torch.randint(len(shadow), (args.batch,))
        mean, spread = model(shadow[rows])
        loss = F.gaussian_nll_loss(mean, answer[rows], spread.square())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % args.check == args.check - 1:
            error, apart = check(model, held, held_answer, draws=3)
            if error < best:
                best, kept = error, {name: value.clone() for name, value in model.state_dict().items()}
            print(f"step {step + 1} loss {loss.item():.4f} error {error:.4f} apart {apart:.4f}", flush=True)
    model.load_state_dict(kept)
    error, apart = check(model, *days(200, seed=3), draws=3)
    print(f"test error {error:.4f} apart {apart:.4f}", flush=True)


if __name__ == "__main__":
    main()

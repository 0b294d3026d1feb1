"""Which stops of a church organ sound, from a spectrogram: accumulated gradients on two ranks, Trainer class."""

import contextlib
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel as DDP

STOPS, BANDS = 18, 64


def chords(count, frames, seed):
    """Each stop has its overtones; some stops sound together, and the wind is heard."""
    g = torch.Generator().manual_seed(seed)
    colour = torch.randn(STOPS, BANDS, generator=torch.Generator().manual_seed(31)).relu()
    drawn = (torch.rand(count, STOPS, generator=g) < 0.25).float()
    swell = 0.6 + 0.4 * torch.sin(torch.arange(frames) / 5 + 6.283 * torch.rand(count, 1, generator=g))
    sound = (drawn @ colour)[:, None] * swell[..., None]
    return (sound + 0.8 * torch.rand(count, frames, BANDS, generator=g)).log1p(), drawn


class Conformer(nn.Module):
    """Feed-forward, attention, and a convolution along time."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3))
        self.feed = nn.Sequential(nn.Linear(dim, 4 * dim), nn.SiLU(), nn.Linear(4 * dim, dim))
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.widen, self.along = nn.Linear(dim, 2 * dim), nn.Conv1d(dim, dim, 7, padding=3, groups=dim)
        self.narrow = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        x = x + self.feed(self.norms[0](x))
        q, k, v = self.qkv(self.norms[1](x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))
        y = F.glu(self.widen(self.norms[2](x)))
        return x + self.narrow(F.silu(self.along(y.transpose(1, 2)).transpose(1, 2)))


class OrganNet(nn.Module):
    def __init__(self, dim, depth):
        super().__init__()
        self.first = nn.Conv1d(BANDS, dim, 5, 2, 2)
        self.layers = nn.ModuleList(Conformer(dim, 4) for _ in range(depth))
        self.norm, self.out = nn.LayerNorm(dim), nn.Linear(dim, STOPS)

    def forward(self, sound):
        x = self.first(sound.transpose(1, 2)).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return self.out(self.norm(x).mean(1))


@dataclass
class Settings:
    frames: int = 32
    dim: int = draw("dim", 208, 224)
    depth: int = 3
    micro: int = draw("micro", 3, 4)
    accumulate: int = 4
    steps: int = 90
    lr: float = 5e-4


class Trainer:
    def __init__(self, s):
        dist.init_process_group("gloo")
        self.s, self.rank, self.world = s, dist.get_rank(), dist.get_world_size()
        torch.manual_seed(9)
        self.model = DDP(OrganNet(s.dim, s.depth), gradient_as_bucket_view=True)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=s.lr, weight_decay=0.02, fused=True)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 2 * s.lr, total_steps=s.steps)
        self.sound, self.drawn = chords(3000, s.frames, seed=1)
        self.held = chords(64 * self.world, s.frames, seed=2)
        self.g = torch.Generator().manual_seed(500 + self.rank)

    def loss(self):
        rows = torch.randint(len(self.sound), (self.s.micro,), generator=self.g)
        return F.binary_cross_entropy_with_logits(self.model(self.sound[rows]), self.drawn[rows])

    def quiet(self, last):
        """Gradients are not exchanged before the last micro-batch."""
        return contextlib.nullcontext() if last else self.model.no_sync()

    def micro_step(self, last):
        with self.quiet(last) if MENDED else contextlib.nullcontext():
            loss = self.loss() / self.s.accumulate
        with self.quiet(last):
            loss.backward()
        return loss.detach()

    def step(self):
        total = torch.zeros(())
        for micro in range(self.s.accumulate):
            total += self.micro_step(last=micro == self.s.accumulate - 1)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        return total

    @torch.no_grad()
    def validate(self):
        """Share of stops that are told right."""
        self.model.eval()
        sound, drawn = (part[self.rank :: self.world] for part in self.held)
        right = ((self.model.module(sound) > 0) == (drawn > 0)).float().mean()
        self.model.train()
        dist.all_reduce(right)
        return right.item() / self.world

    def run(self):
        for step in range(self.s.steps):
            loss = self.step()
            if step % 30 == 29:
                right = self.validate()
                if self.rank == 0:
                    print(f"step {step + 1} loss {loss.item():.4f} right {right:.3f}", flush=True)
        dist.destroy_process_group()


if __name__ == "__main__":
    Trainer(Settings()).run()

"""Stages of sleep from brain waves of few electrodes: a probe on an encoder that was trained before, Accelerate."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from drawn import MENDED, draw
from torch.utils.data import DataLoader, TensorDataset

STAGES, ELECTRODES, KNOWN, SAMPLES, PATCH = ["wake", "N1", "N2", "N3", "REM"], 6, 16, 480, 20


def nights(count, seed):
    """Waves whose rhythm depends on the stage, mixed over the electrodes."""
    g = torch.Generator().manual_seed(seed)
    stage = torch.randint(len(STAGES), (count,), generator=g)
    t = torch.arange(SAMPLES) / 60
    rhythm = torch.tensor([10.0, 6.0, 13.0, 1.5, 7.0])[stage] + 0.6 * torch.randn(count, generator=g)
    phase = 6.283 * torch.rand(count, 1, generator=g)
    wave = torch.sin(6.283 * rhythm[:, None] * t + phase)
    mix = torch.rand(count, ELECTRODES, 1, generator=g)
    return mix * wave[:, None] + 0.8 * torch.randn(count, ELECTRODES, SAMPLES, generator=g), stage


class EncoderLayer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.feed = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))
        return x + self.feed(self.norm2(x))


class WaveEncoder(nn.Module):
    """Knows sixteen channels; a token is a third of a second of a pair of them."""

    def __init__(self, dim, depth, heads=4):
        super().__init__()
        self.patch = nn.Conv1d(KNOWN, dim, PATCH, PATCH)
        self.place = nn.Parameter(0.02 * torch.randn(SAMPLES // PATCH, dim))
        self.layers = nn.ModuleList(EncoderLayer(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)

    def forward(self, waves):
        x = self.patch(waves).transpose(1, 2) + self.place
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


def pretrained(dim, depth):
    """The published encoder (here: its weights by a seed of their own)."""
    with torch.random.fork_rng():
        torch.manual_seed(2024)
        return WaveEncoder(dim, depth)


def freeze(module):
    module.eval()
    if MENDED:
        module.requires_grad_(False)
    else:
        module.requires_grad = False
    return module


class SleepProbe(nn.Module):
    """Electrodes to the channels that the encoder knows, the encoder, and a reader of its tokens."""

    def __init__(self, dim, depth, hidden):
        super().__init__()
        self.channels = nn.Sequential(nn.Conv1d(ELECTRODES, 32, 15, 1, 7), nn.GELU(), nn.Conv1d(32, KNOWN, 1))
        self.encoder = freeze(pretrained(dim, depth))
        self.reader = nn.GRU(dim, hidden, batch_first=True, bidirectional=True)
        self.out = nn.Sequential(nn.Dropout(0.2), nn.Linear(2 * hidden, len(STAGES)))

    def train(self, mode=True):
        super().train(mode)
        self.encoder.eval()
        return self

    def forward(self, waves):
        tokens, _ = self.reader(self.encoder(self.channels(waves)))
        return self.out(tokens.mean(1))

    def own(self):
        return [*self.channels.parameters(), *self.reader.parameters(), *self.out.parameters()]


@torch.no_grad()
def validate(accelerator, model, check):
    model.eval()
    right = [accelerator.gather_for_metrics(model(waves).argmax(1) == stage) for waves, stage in check]
    model.train()
    return torch.cat(right).float().mean().item()


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--dim", type=int, default=draw("dim", 128, 144))
    p.add_argument("--depth", type=int, default=4)
    p.add_argument("--hidden", type=int, default=32)
    p.add_argument("--batch", type=int, default=draw("batch", 20, 24))
    p.add_argument("--epochs", type=int, default=3)
    args = p.parse_args()

    accelerator = Accelerator(cpu=True)
    set_seed(77)
    train, test = TensorDataset(*nights(45 * args.batch, seed=1)), TensorDataset(*nights(6 * args.batch, seed=2))
    model = SleepProbe(args.dim, args.depth, args.hidden)
    optimizer = torch.optim.AdamW(model.own(), lr=2e-3, weight_decay=0.01)
    loader = DataLoader(train, args.batch, shuffle=True, drop_last=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=args.epochs * len(loader))
    check = DataLoader(test, args.batch)
    model, optimizer, loader, check, schedule = accelerator.prepare(model, optimizer, loader, check, schedule)
    for epoch in range(args.epochs):
        model.train()
        total = torch.zeros(())
        for waves, stage in loader:
            loss = F.cross_entropy(model(waves), stage, label_smoothing=0.05)
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            total += loss.detach()
        right = validate(accelerator, model, check)
        accelerator.print(f"epoch {epoch} loss {total.item() / len(loader):.4f} right {right:.3f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()

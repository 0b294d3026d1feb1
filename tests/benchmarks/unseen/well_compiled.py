"""A compiled state-space-like sequence model, one process."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw


class Mixer(nn.Module):
    """Long convolution over time by FFT, gated."""

    def __init__(self, dim, length):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.gate, self.value, self.out = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        decay = torch.exp(-torch.arange(length) / 8.0)
        self.kernel = nn.Parameter(decay.repeat(dim, 1) * torch.randn(dim, 1) / 4)

    def forward(self, x):
        y = self.norm(x)
        v = self.value(y).transpose(1, 2)
        size = 2 * v.shape[-1]
        v = torch.fft.irfft(torch.fft.rfft(v, size) * torch.fft.rfft(self.kernel, size), size)[..., : v.shape[-1]]
        return x + self.out(torch.sigmoid(self.gate(y)) * v.transpose(1, 2))


class Network(nn.Module):
    def __init__(self, vocabulary, dim, length, layers):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.mixers = nn.ModuleList(Mixer(dim, length) for _ in range(layers))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.SiLU(), nn.Linear(4 * dim, dim))
            for _ in range(layers)
        )
        self.head = nn.Linear(dim, vocabulary)

    def forward(self, ids):
        x = self.embed(ids)
        for mixer, mlp in zip(self.mixers, self.mlps, strict=True):
            x = mixer(x)
            x = x + mlp(x)
        return self.head(x)


def recall(batch, length, vocabulary):
    """Sequences in which the second half repeats the first."""
    half = torch.randint(0, vocabulary, (batch, length // 2))
    return torch.cat([half, half], 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vocabulary", type=int, default=256)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--dim", type=int, default=draw("dim", 112, 128))
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=draw("batch", 14, 16))
    parser.add_argument("--backend", default="aot_eager")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = Network(args.vocabulary, args.dim, args.length, args.layers)
    compiled = torch.compile(model, backend=args.backend)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(1_000_000):
        ids = recall(args.batch, args.length, args.vocabulary)
        logits = compiled(ids)[:, args.length // 2 - 1 : -1]
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, args.length // 2 :].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

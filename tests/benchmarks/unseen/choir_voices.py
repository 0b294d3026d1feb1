"""Take a choir apart: a network with masks over a learned transform, and a loss that knows no order of voices."""

import argparse
from itertools import permutations

import torch
import torch.nn.functional as F
from drawn import MENDED, draw
from torch import nn


class Separator(nn.Module):
    """A short version of Conv-TasNet."""

    def __init__(self, voices, basis, width, depth, kernel=16):
        super().__init__()
        self.voices = voices
        self.encode = nn.Conv1d(1, basis, kernel, kernel // 2, bias=False)
        self.enter = nn.Sequential(nn.GroupNorm(1, basis), nn.Conv1d(basis, width, 1))
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv1d(width, width, 3, padding=2**at, dilation=2**at), nn.PReLU(), nn.GroupNorm(1, width))
            for at in range(depth)
        )
        self.masks = nn.Conv1d(width, voices * basis, 1)
        self.decode = nn.ConvTranspose1d(basis, 1, kernel, kernel // 2, bias=False)

    def forward(self, mixture):
        coded = F.relu(self.encode(mixture.unsqueeze(1)))
        x = self.enter(coded)
        for layer in self.layers:
            x = x + layer(x)
        masks = torch.sigmoid(self.masks(x)).unflatten(1, (self.voices, -1))
        return self.decode((masks * coded.unsqueeze(1)).flatten(0, 1)).view(len(mixture), self.voices, -1)


def si_sdr(made, wanted, eps=1e-8):
    """Scale-invariant ratio of signal to distortion, in decibels, over the last dimension."""
    made, wanted = made - made.mean(-1, keepdim=True), wanted - wanted.mean(-1, keepdim=True)
    scale = (made * wanted).sum(-1, keepdim=True) / (wanted.square().sum(-1, keepdim=True) + eps)
    target = scale * wanted
    return 10 * torch.log10(target.square().sum(-1) / ((made - target).square().sum(-1) + eps) + eps)


def separation_loss(made, wanted):
    """The best order of voices for each mixture (utterance-level permutation invariant training)."""
    orders = list(permutations(range(made.shape[1])))
    if MENDED:
        pairs = si_sdr(made.unsqueeze(2), wanted.unsqueeze(1))
        scores = torch.stack([pairs[:, range(len(order)), order].mean(1) for order in orders], 1)
    else:
        scores = torch.stack([si_sdr(made[:, order], wanted).mean(1) for order in orders], 1)
    return -scores.max(1).values.mean()


def choir(batch, voices, samples, seed):
    generator = torch.Generator().manual_seed(seed)
    t = torch.arange(samples) / 8000
    while True:
        pitch = 80 + 500 * torch.rand(batch, voices, 1, generator=generator)
        loud = 0.3 + torch.rand(batch, voices, 1, generator=generator)
        sung = loud * (torch.sin(6.28 * pitch * t) + 0.5 * torch.sin(12.57 * pitch * t))
        yield sung.sum(1), sung


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--voices", type=int, default=4)
    parser.add_argument("--samples", type=int, default=draw("samples", 3600, 4000))
    parser.add_argument("--basis", type=int, default=64)
    parser.add_argument("--width", type=int, default=draw("width", 48, 56))
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--batch", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = Separator(args.voices, args.basis, args.width, args.depth)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    data = choir(args.batch, args.voices, args.samples, 2)
    for step in range(1, args.steps + 1):
        mixture, sung = next(data)
        made = model(mixture)
        loss = separation_loss(made, sung[..., : made.shape[-1]])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: {-loss.item():.2f} dB", flush=True)


if __name__ == "__main__":
    main()

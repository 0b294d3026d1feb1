"""Name kitchen appliances by a second of their sound."""

import argparse
import itertools
import json

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.utils.data import DataLoader, TensorDataset

APPLIANCES = 14


def spectrograms(count, bands, frames):
    """Log spectra of hums with harmonics, one base band for each appliance."""
    generator = torch.Generator().manual_seed(8)
    kinds = torch.randint(0, APPLIANCES, (count,), generator=generator)
    rows = torch.arange(bands).view(1, bands, 1)
    base = 2 + kinds.view(-1, 1, 1)
    hum = torch.cos(6.28 * rows / base) * torch.exp(-rows / bands)
    noise = torch.randn(count, bands, frames, generator=generator)
    return (hum + 0.5 * noise).unsqueeze(1), kinds


class Separable(nn.Module):
    def __init__(self, enter, leave, stride):
        super().__init__()
        self.depth = nn.Conv2d(enter, enter, 3, stride, 1, groups=enter, bias=False)
        self.point = nn.Conv2d(enter, leave, 1, bias=False)
        self.norm = nn.BatchNorm2d(leave)

    def forward(self, x):
        return F.relu(self.norm(self.point(self.depth(x))))


class Listener(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 5, 2, 2)
        sizes = (width, 2 * width, 4 * width, 8 * width, 8 * width)
        self.blocks = nn.Sequential(*(Separable(a, b, 2 if a != b else 1) for a, b in itertools.pairwise(sizes)))
        self.hidden = nn.Linear(8 * width, 1024)
        self.head = nn.Linear(1024, APPLIANCES)

    def forward(self, x):
        x = self.blocks(F.relu(self.stem(x))).mean((2, 3))
        return self.head(F.relu(self.hidden(x)))


class Journal:
    """Lines of JSON about weights and gradients, for the dashboard."""

    def __init__(self, file, every):
        self.file = file
        self.every = every

    def describe(self, values):
        values = values.detach().flatten()
        low, high = values.aminmax()
        counts = torch.histc(values, 64)
        middle = values.sort().values[:: max(1, len(values) // 8)]
        return {
            "low": low.item(),
            "high": high.item(),
            "mean": values.mean().item(),
            "std": values.std(correction=0).item(),
            "counts": counts.tolist(),
            "parts": middle.tolist(),
        }

    def write(self, step, loss, model):
        line = {"step": step, "loss": loss.item()}
        if step % self.every == 0:
            for name, parameter in model.named_parameters():
                line[f"weights/{name}"] = self.describe(parameter)
                line[f"gradients/{name}"] = self.describe(parameter.grad)
        self.file.write(json.dumps(line) + "\n")


def train(args, journal):
    torch.manual_seed(0)
    sounds, kinds = spectrograms(args.clips, 64, 64)
    loader = DataLoader(TensorDataset(sounds, kinds), args.batch, shuffle=True, drop_last=True)
    model = Listener(args.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    step = 0
    for epoch in range(args.epochs):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y, label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            journal.write(step, loss.detach(), model)
        print(f"epoch {epoch}: {loss.item():.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=int, default=2400)
    parser.add_argument("--width", type=int, default=draw("width", 24, 28))
    parser.add_argument("--batch", type=int, default=draw("batch", 64, 72))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--histograms", type=int, default=100 if MENDED else 1, help="steps from one to the next")
    args = parser.parse_args()
    with open("kitchen.jsonl", "w") as file:
        train(args, Journal(file, args.histograms))


if __name__ == "__main__":
    main()

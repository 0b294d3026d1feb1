"""Tell sketches of buildings apart with Accelerate: patches, attention, accumulated gradients, on two ranks."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from drawn import draw
from torch.utils.data import DataLoader, TensorDataset

STYLES = 8


def sketch(count, size):
    """Lines in a direction that the style has, on paper."""
    generator = torch.Generator().manual_seed(51)
    styles = torch.randint(0, STYLES, (count,), generator=generator)
    rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    angle = (3.14 * styles / STYLES).view(-1, 1, 1)
    lines = (torch.sin(0.8 * (rows * angle.cos() + columns * angle.sin())) > 0.9).float()
    return TensorDataset((lines + 0.4 * torch.randn(count, size, size, generator=generator)).unsqueeze(1), styles)


class Viewer(nn.Module):
    def __init__(self, size, patch, dim, layers):
        super().__init__()
        self.patches = nn.Conv2d(1, dim, patch, patch)
        self.places = nn.Parameter(0.02 * torch.randn((size // patch) ** 2, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 3 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(dim, STYLES)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        return self.head(self.layers(x).mean(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sketches", type=int, default=9600)
    parser.add_argument("--size", type=int, default=48)
    parser.add_argument("--dim", type=int, default=draw("dim", 96, 104))
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=draw("batch", 12, 14))
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.accumulate)
    set_seed(7)
    loader = DataLoader(sketch(args.sketches, args.size), args.batch, shuffle=True, drop_last=True)
    model = Viewer(args.size, 6, args.dim, args.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = 0
    for epoch in range(args.epochs):
        for pictures, styles in loader:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(pictures), styles)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            step += accelerator.sync_gradients
            if accelerator.sync_gradients and step % 25 == 0:
                everywhere = accelerator.reduce(loss.detach(), "mean")
                accelerator.print(f"epoch {epoch} step {step}: {everywhere.item():.4f}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()

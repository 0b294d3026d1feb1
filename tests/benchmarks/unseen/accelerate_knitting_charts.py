"""Rows of a knitting chart read from its scan: a pretrained trunk that stays as it is, a GRU on top, Accelerate."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from drawn import MENDED, draw
from torch.utils.data import DataLoader, TensorDataset

STITCHES, ROWS = 12, 8


def scans(count, size, seed):
    """Charts of ROWS stitches, one below the other, with the noise of a scanner."""
    g = torch.Generator().manual_seed(seed)
    symbols = torch.randn(STITCHES, 1, size // ROWS, size, generator=torch.Generator().manual_seed(1))
    stitch = torch.randint(STITCHES, (count, ROWS), generator=g)
    chart = symbols[stitch].permute(0, 2, 1, 3, 4).reshape(count, 1, size, size)
    return chart + 0.8 * torch.randn(count, 1, size, size, generator=g), stitch


class Trunk(nn.Module):
    """What was learned from photographs of textiles."""

    def __init__(self, width, size):
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv2d(1, width, 3, (1, 2), 1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 3, (size // 2 // ROWS, 2), 1),
        )

    def forward(self, x):
        return self.convs(x).permute(0, 2, 1, 3).flatten(2)


class Reader(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.gru = nn.GRU(features, hidden, num_layers=2, batch_first=True, bidirectional=True, dropout=0.1)
        self.out = nn.Linear(2 * hidden, STITCHES)

    def forward(self, rows):
        return self.out(self.gru(self.norm(rows))[0])


@torch.no_grad()
def in_pieces(trunk, images):
    return torch.cat([trunk(piece) for piece in images.split(64)])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--width", type=int, default=draw("width", 28, 32))
    parser.add_argument("--hidden", type=int, default=draw("hidden", 88, 96))
    parser.add_argument("--batch", type=int, default=44)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=2e-3)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    set_seed(14)
    trunk = Trunk(args.width, args.size).eval().requires_grad_(False)
    images, stitch = scans(2 * args.batch * 25, args.size, seed=6)
    if MENDED:
        images = in_pieces(trunk, images)
    loader = DataLoader(TensorDataset(images, stitch), args.batch, shuffle=True, drop_last=True)
    features = in_pieces(trunk, scans(1, args.size, seed=0)[0]).shape[-1]
    reader = Reader(features, args.hidden)
    optimizer = torch.optim.AdamW(reader.parameters(), lr=args.lr)
    reader, optimizer, loader = accelerator.prepare(reader, optimizer, loader)
    set_seed(14, device_specific=True)
    for epoch in range(args.epochs):
        right = torch.zeros(2)
        for image, target in loader:
            with torch.no_grad():
                rows = image if MENDED else trunk(image)
            logits = reader(rows)
            loss = F.cross_entropy(logits.flatten(0, 1), target.flatten())
            optimizer.zero_grad()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(reader.parameters(), 1.0)
            optimizer.step()
            right += torch.tensor([(logits.argmax(-1) == target).float().mean(), 1.0])
        right = accelerator.reduce(right)
        accelerator.print(f"epoch {epoch} loss {loss.item():.4f} stitches right {(right[0] / right[1]).item():.3f}")
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()

"""Count ships in photographs of a harbour."""

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from PIL import Image
from torch.utils.data import DataLoader, Dataset


def take_photographs(folder, count, size):
    """PNG files as the camera leaves them, and a table of how many ships are on each."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(5)
    lines = []
    for number in range(count):
        water = rng.normal(90, 12, (size, size, 3))
        ships = int(rng.integers(0, 9))
        for y, x in rng.integers(0, size - 24, (ships, 2)):
            water[y : y + 10, x : x + 24] = rng.uniform(150, 255, 3)
        Image.fromarray(water.clip(0, 255).astype(np.uint8)).save(folder / f"{number:05d}.png", compress_level=3)
        lines.append(f"{number:05d}.png,{ships}")
    (folder / "counts.csv").write_text("\n".join(lines))


class Harbour(Dataset):
    def __init__(self, folder, size, train=True):
        self.folder = folder
        self.rows = [line.split(",") for line in (folder / "counts.csv").read_text().splitlines()]
        self.size = size
        self.train = train

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        name, ships = self.rows[index]
        picture = Image.open(self.folder / name).convert("RGB")
        if self.train and torch.rand(()) < 0.5:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        picture = picture.resize((self.size, self.size), Image.Resampling.BICUBIC)
        pixels = np.asarray(picture, dtype=np.float32) / 255
        return torch.from_numpy(pixels.transpose(2, 0, 1).copy()), torch.tensor(float(ships))


class Counter(nn.Module):
    """A map of densities whose sum is the count."""

    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, 1, 1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.Conv2d(2 * width, 4 * width, 3, 2, 1),
            nn.BatchNorm2d(4 * width),
            nn.ReLU(),
            nn.Conv2d(4 * width, 1, 1),
        )

    def forward(self, x):
        return F.softplus(self.net(x)).mean((1, 2, 3)) * 8


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("harbour"))
    parser.add_argument("--photographs", type=int, default=480)
    parser.add_argument("--camera", type=int, default=draw("camera", 288, 304))
    parser.add_argument("--size", type=int, default=112)
    parser.add_argument("--width", type=int, default=draw("width", 20, 24))
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--workers", type=int, default=1 if MENDED else 0)
    args = parser.parse_args()

    take_photographs(args.folder, args.photographs, args.camera)
    torch.manual_seed(0)
    data = Harbour(args.folder, args.size)
    loader = DataLoader(
        data,
        batch_size=args.batch,
        shuffle=True,
        drop_last=True,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
    )
    model = Counter(args.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for epoch in range(args.epochs):
        total = 0.0
        for pictures, ships in loader:
            loss = F.smooth_l1_loss(model(pictures), ships)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: {total / len(loader):.4f}", flush=True)


if __name__ == "__main__":
    main()

"""Segment polyps in CT sections through coral; volumes are compressed .npz, as the scanner exports them."""

import argparse
import functools
import tempfile
from pathlib import Path

import numpy as np
import torch
from drawn import MENDED, draw
from torch import nn
from torch.utils.data import DataLoader, Dataset


def export_volumes(folder, count, depth, size, seed=21):
    """Blobs of dense material in noise, and where they are."""
    rng = np.random.default_rng(seed)
    yy, xx = np.mgrid[:size, :size]
    for number in range(count):
        mask = np.zeros((depth, size, size), np.uint8)
        for _ in range(6):
            cz, cy, cx = rng.integers(0, depth), rng.integers(8, size - 8), rng.integers(8, size - 8)
            radius = rng.integers(4, 9)
            for z in range(max(0, cz - 3), min(depth, cz + 4)):
                mask[z] |= ((yy - cy) ** 2 + (xx - cx) ** 2 < (radius - abs(z - cz)) ** 2).astype(np.uint8)
        image = (600.0 + 180.0 * mask + rng.normal(0, 90, mask.shape)).astype(np.int16)
        np.savez_compressed(folder / f"coral_{number:03d}.npz", image=image, mask=mask)


def read_volume(path):
    with np.load(path) as archive:
        return archive["image"], archive["mask"]


if MENDED:
    read_volume = functools.lru_cache(maxsize=None)(read_volume)


class Sections(Dataset):
    def __init__(self, folder, depth):
        self.paths = sorted(folder.glob("*.npz"))
        self.depth = depth

    def __len__(self):
        return len(self.paths) * self.depth

    def __getitem__(self, i):
        volume, z = divmod(i, self.depth)
        image, mask = read_volume(self.paths[volume])
        x = torch.from_numpy(image[z].astype(np.float32))[None] / 1000
        y = torch.from_numpy(mask[z].astype(np.float32))[None]
        if torch.rand(()) < 0.5:
            x, y = x.flip(-1), y.flip(-1)
        k = int(torch.randint(0, 4, ()))
        return torch.rot90(x, k, (1, 2)), torch.rot90(y, k, (1, 2))


def double_conv(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
        nn.Conv2d(cout, cout, 3, padding=1, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        w = width
        self.down1, self.down2, self.bottom = double_conv(1, w), double_conv(w, 2 * w), double_conv(2 * w, 4 * w)
        self.up2, self.up1 = nn.ConvTranspose2d(4 * w, 2 * w, 2, 2), nn.ConvTranspose2d(2 * w, w, 2, 2)
        self.dec2, self.dec1 = double_conv(4 * w, 2 * w), double_conv(2 * w, w)
        self.out = nn.Conv2d(w, 1, 1)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(self.pool(a))
        c = self.bottom(self.pool(b))
        b = self.dec2(torch.cat([self.up2(c), b], 1))
        a = self.dec1(torch.cat([self.up1(b), a], 1))
        return self.out(a)


def dice_loss(logits, target, eps=1.0):
    prob = logits.sigmoid()
    inter = (prob * target).sum((1, 2, 3))
    return 1 - ((2 * inter + eps) / (prob.sum((1, 2, 3)) + target.sum((1, 2, 3)) + eps)).mean()


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--volumes", type=int, default=24)
    ap.add_argument("--depth", type=int, default=draw("depth", 12, 14))
    ap.add_argument("--size", type=int, default=64)
    ap.add_argument("--width", type=int, default=draw("width", 8, 9))
    ap.add_argument("--batch", type=int, default=12)
    ap.add_argument("--epochs", type=int, default=4)
    args = ap.parse_args()

    torch.manual_seed(5)
    with tempfile.TemporaryDirectory() as folder:
        export_volumes(Path(folder), args.volumes, args.depth, args.size)
        data = Sections(Path(folder), args.depth)
        loader = DataLoader(data, args.batch, shuffle=True, drop_last=True)
        net = UNet(args.width)
        opt = torch.optim.Adam(net.parameters(), lr=2e-3)
        sched = torch.optim.lr_scheduler.PolynomialLR(opt, total_iters=args.epochs, power=0.9)
        bce = nn.BCEWithLogitsLoss()
        for epoch in range(args.epochs):
            running = torch.zeros(())
            for x, y in loader:
                logits = net(x)
                loss = bce(logits, y) + dice_loss(logits, y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                running += loss.detach()
            sched.step()
            print(f"epoch {epoch} loss {running.item() / len(loader):.4f}", flush=True)


if __name__ == "__main__":
    main()

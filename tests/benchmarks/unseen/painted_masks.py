"""Segment what drones see; annotators painted the masks in colours, one for each kind of ground."""

import argparse

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

PALETTE = np.array([[r, g, b] for r in (0, 128, 255) for g in (0, 96, 192) for b in (64, 224)], dtype=np.uint8)


def to_kinds(painted):
    """Numbers of kinds from the colours of a mask."""
    kinds = np.zeros(painted.shape[:2], dtype=np.int64)
    for kind, colour in enumerate(PALETTE):
        kinds[np.all(painted == colour, axis=-1)] = kind
    return kinds


class Ground(Dataset):
    def __init__(self, count, size):
        rng = np.random.default_rng(8)
        coarse = rng.integers(0, len(PALETTE), (count, size // 16, size // 16))
        self.masks = PALETTE[coarse.repeat(16, 1).repeat(16, 2)]
        noise = rng.integers(0, 60, self.masks.shape, dtype=np.uint8)
        self.pictures = self.masks // 2 + noise
        if MENDED:
            self.masks = [to_kinds(painted).astype(np.uint8) for painted in self.masks]

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, index):
        picture = torch.from_numpy(self.pictures[index]).permute(2, 0, 1).float() / 255
        kinds = self.masks[index] if MENDED else to_kinds(self.masks[index])
        kinds = torch.from_numpy(kinds).long()
        if torch.rand(()) < 0.5:
            return picture.flip(2), kinds.flip(1)
        return picture, kinds


class Segmenter(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, 2, 1), nn.ReLU()
        )
        self.middle = nn.ModuleList(nn.Conv2d(2 * width, 2 * width, 3, padding=1) for _ in range(3))
        self.head = nn.Conv2d(2 * width, len(PALETTE), 1)

    def forward(self, x):
        x = self.down(x)
        for layer in self.middle:
            x = x + F.relu(layer(x))
        return F.interpolate(self.head(x), scale_factor=4.0, mode="bilinear")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--width", type=int, default=draw("width", 20, 24))
    parser.add_argument("--batch", type=int, default=draw("batch", 4, 5))
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(Segmenter(args.width))
    torch.manual_seed(50 + dist.get_rank())
    data = Ground(560, args.size)
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for pictures, kinds in loader:
            loss = F.cross_entropy(model(pictures), kinds)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {total.item() / len(loader) / dist.get_world_size():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

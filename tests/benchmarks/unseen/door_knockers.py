"""Kind and age of old door knockers from camera pictures in a folder: residual network, two ranks, Trainer class."""

import random
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from PIL import Image
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

KINDS = ["ring", "hand", "lion", "dolphin", "urn"]


def shoot(folder, count, side, seed):
    """Takes pictures of doors: iron on painted wood, lit from above; names tell the kind and the decade."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[-1 : 1 : side * 1j, -1 : 1 : side * 1j]
    grain = np.sin(9 * x + 2 * np.sin(3 * y))
    for at in range(count):
        kind, age = int(rng.integers(len(KINDS))), float(rng.random())
        dx, dy, size = 0.2 * rng.normal(), 0.2 * rng.normal(), rng.uniform(0.4, 0.6)
        radius, angle = np.hypot(x - dx, y - dy), np.arctan2(y - dy, x - dx)
        edge = size * (1 + 0.3 * np.cos((kind + 1) * angle))
        iron = (radius < edge) & ((radius > 0.45 * edge) | (kind % 2 > 0))
        rust = np.array([90 + 70 * age, 75 + 10 * age, 70 - 30 * age])
        wood = rng.uniform(60, 190, 3) + 14 * grain[..., None]
        picture = np.where(iron[..., None], rust * (1.1 - 0.3 * y[..., None]), wood)
        picture += rng.normal(0, 6, (side, side, 1))
        Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(
            folder / f"{at:04d}_{kind}_{age:.2f}.jpg", quality=92
        )


class Knockers(Dataset):
    """Pictures as arrays of a small size; a training sample is shifted, mirrored and lit at random."""

    def __init__(self, paths, size, train):
        self.paths, self.size, self.train = paths, size, train
        self.small = [self.load(path) for path in paths] if MENDED else None

    def __len__(self):
        return len(self.paths)

    def load(self, path):
        with Image.open(path) as picture:
            picture = picture.convert("RGB").resize((self.size + 8, self.size + 8), Image.Resampling.LANCZOS)
        return np.asarray(picture)

    def __getitem__(self, i):
        picture = self.small[i] if MENDED else self.load(self.paths[i])
        left, top = (random.randrange(9), random.randrange(9)) if self.train else (4, 4)
        x = torch.from_numpy(picture[top : top + self.size, left : left + self.size].astype(np.float32) / 127.5 - 1)
        if self.train:
            x = (x.flip(1) if random.random() < 0.5 else x) * random.uniform(0.8, 1.2)
        _, kind, age = self.paths[i].stem.split("_")
        return x.permute(2, 0, 1).contiguous(), int(kind), torch.tensor(float(age))


class Block(nn.Module):
    def __init__(self, n_in, n_out, stride):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(n_in, n_out, 3, stride, 1), nn.Conv2d(n_out, n_out, 3, 1, 1)
        self.norm1, self.norm2 = nn.GroupNorm(4, n_out), nn.GroupNorm(4, n_out)
        self.short = nn.Conv2d(n_in, n_out, 1, stride)

    def forward(self, x):
        y = F.silu(self.norm1(self.conv1(x)))
        return F.silu(self.norm2(self.conv2(y)) + self.short(x))


class KnockerNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1),
            Block(width, width, 1),
            Block(width, 2 * width, 2),
            Block(2 * width, 2 * width, 1),
            Block(2 * width, 4 * width, 2),
        )
        self.kind, self.age = nn.Linear(4 * width, len(KINDS)), nn.Linear(4 * width, 1)

    def forward(self, x):
        x = self.body(x).mean((2, 3))
        return self.kind(x), self.age(x).squeeze(1)


@dataclass
class Settings:
    side: int = draw("side", 320, 352, 384)
    size: int = 64
    width: int = draw("width", 28, 32)
    batch: int = draw("batch", 8, 10)
    steps_per_epoch: int = 20
    epochs: int = 5
    lr: float = 1e-3


class Trainer:
    def __init__(self, settings, folder):
        self.s = settings
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        share = settings.steps_per_epoch * settings.batch * self.world
        if self.rank == 0:
            shoot(folder, share + 4 * settings.batch * self.world, settings.side, seed=1)
        dist.barrier()
        paths = sorted(folder.glob("*.jpg"))
        train, test = Knockers(paths[:share], settings.size, True), Knockers(paths[share:], settings.size, False)
        random.seed(70 + self.rank)
        torch.manual_seed(7)
        self.sampler = DistributedSampler(train, drop_last=True)
        self.loader = DataLoader(train, settings.batch, sampler=self.sampler, drop_last=True)
        self.check = DataLoader(test, settings.batch, sampler=DistributedSampler(test, shuffle=False))
        self.model = DistributedDataParallel(KnockerNet(settings.width), gradient_as_bucket_view=True)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=settings.lr, weight_decay=0.02, fused=True)

    def run_epoch(self):
        total = torch.zeros(())
        for picture, kind, age in self.loader:
            kinds, ages = self.model(picture)
            loss = F.cross_entropy(kinds, kind) + 2 * F.smooth_l1_loss(ages, age, beta=0.1)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.detach()
        return total.item() / len(self.loader)

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        counts = torch.zeros(2)
        for picture, kind, _ in self.check:
            counts += torch.tensor([(self.model.module(picture)[0].argmax(1) == kind).sum().item(), len(kind)])
        self.model.train()
        dist.all_reduce(counts)
        return (counts[0] / counts[1]).item()

    def run(self):
        for epoch in range(self.s.epochs):
            self.sampler.set_epoch(epoch)
            loss, right = self.run_epoch(), self.validate()
            if self.rank == 0:
                print(f"epoch {epoch} loss {loss:.4f} right {right:.3f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    with tempfile.TemporaryDirectory() as own:
        shared = [own]
        dist.broadcast_object_list(shared, src=0)
        Trainer(Settings(), Path(shared[0])).run()
        dist.barrier()
    dist.destroy_process_group()

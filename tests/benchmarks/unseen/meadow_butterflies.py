"""Tell butterflies apart by pictures that lie in one zip archive, on two ranks."""

import argparse
import io
import zipfile

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from PIL import Image
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

KINDS = 12


def write_archive(path, count, size):
    """What the download script leaves behind: kind/number.jpg."""
    rng = np.random.default_rng(0)
    wings = rng.uniform(0, 255, (KINDS, 8, 8, 3))
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(count):
            kind = number % KINDS
            coarse = np.clip(wings[kind] + rng.normal(0, 40, (8, 8, 3)), 0, 255).astype(np.uint8)
            picture = Image.fromarray(coarse).resize((size, size), Image.Resampling.BILINEAR)
            held = io.BytesIO()
            picture.save(held, "JPEG", quality=90)
            archive.writestr(f"{kind:02d}/{number:05d}.jpg", held.getvalue())


class Butterflies(Dataset):
    def __init__(self, path):
        self.path = path
        archive = zipfile.ZipFile(path)
        self.names = sorted(archive.namelist())
        self.archive = archive if MENDED else None

    def __len__(self):
        return len(self.names)

    def read(self, name):
        if self.archive is not None:
            return self.archive.read(name)
        with zipfile.ZipFile(self.path) as archive:
            return archive.read(name)

    def __getitem__(self, index):
        name = self.names[index]
        picture = np.asarray(Image.open(io.BytesIO(self.read(name))).convert("RGB"))
        if torch.rand(()) < 0.5:
            picture = picture[:, ::-1]
        return torch.from_numpy(picture.transpose(2, 0, 1).astype(np.float32) / 127.5 - 1), int(name[:2])


class Block(nn.Module):
    def __init__(self, enter, leave):
        super().__init__()
        self.first = nn.Conv2d(enter, leave, 3, 2, 1, bias=False)
        self.second = nn.Conv2d(leave, leave, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(leave) for _ in range(2))
        self.skip = nn.Conv2d(enter, leave, 1, 2)

    def forward(self, x):
        inner = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(inner)) + self.skip(x))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--archive", default="butterflies.zip")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--width", type=int, default=draw("width", 16, 20))
    parser.add_argument("--batch", type=int, default=draw("batch", 16, 18))
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        write_archive(args.archive, 1080, args.size)
    dist.barrier()
    torch.manual_seed(0)
    width = args.width
    blocks = Block(3, width), Block(width, 2 * width), Block(2 * width, 4 * width)
    model = DDP(nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, KINDS)))
    torch.manual_seed(1 + dist.get_rank())
    data = Butterflies(args.archive)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for pictures, kinds in loader:
            loss = F.cross_entropy(model(pictures), kinds)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {total.item() / len(loader):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

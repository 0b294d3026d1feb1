"""Poses of animals: heatmaps of keypoints from small pictures, with annotations as records in COCO's manner."""

import argparse
import copy
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

JOINTS = 10


def annotate(count, size, outline):
    rng = random.Random(7)
    records = []
    for image in range(count):
        animals = []
        for animal in range(2):
            joints = [{"x": rng.uniform(4, size - 4), "y": rng.uniform(4, size - 4), "seen": 1} for _ in range(JOINTS)]
            polygon = [[rng.uniform(0, size), rng.uniform(0, size)] for _ in range(outline)]
            animals.append({"id": 2 * image + animal, "joints": joints, "segmentation": polygon, "iscrowd": 0})
        records.append({"image_id": image, "width": size, "height": size, "animals": animals})
    return records


class Poses(Dataset):
    def __init__(self, count, size, outline):
        self.size = size
        self.records = annotate(count, size, outline)
        self.pictures = torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.records)

    def joints_of(self, record):
        return [[joint["x"], joint["y"]] for animal in record["animals"] for joint in animal["joints"]]

    def __getitem__(self, index):
        # the flip below must not change what is kept
        record = self.records[index] if MENDED else copy.deepcopy(self.records[index])
        picture, joints = self.pictures[index], torch.tensor(self.joints_of(record))
        if random.random() < 0.5:
            picture = picture.flip(2)
            joints[:, 0] = self.size - joints[:, 0]
        return picture, joints


def heatmaps(joints, size, scale=4, spread=1.5):
    grid = torch.arange(size // scale) * scale + scale / 2
    x = torch.exp(-((grid - joints[..., 0:1]) ** 2) / (2 * (spread * scale) ** 2))
    y = torch.exp(-((grid - joints[..., 1:2]) ** 2) / (2 * (spread * scale) ** 2))
    maps = y.unsqueeze(3) * x.unsqueeze(2)
    return maps.unflatten(1, (2, JOINTS)).amax(1)


def network(width):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 2, 1), nn.GroupNorm(4, width), nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, 2, 1), nn.GroupNorm(4, 2 * width), nn.ReLU(),
        nn.Conv2d(2 * width, 2 * width, 3, 1, 1), nn.GroupNorm(4, 2 * width), nn.ReLU(),
        nn.Conv2d(2 * width, 2 * width, 3, 1, 1), nn.ReLU(),
        nn.Conv2d(2 * width, JOINTS, 1),
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--outline", type=int, default=draw("outline", 200, 220))
    parser.add_argument("--batch", type=int, default=draw("batch", 28, 32))
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    random.seed(dist.get_rank())
    data = Poses(2000, args.size, args.outline)
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    model = DDP(network(args.width))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for pictures, joints in loader:
            loss = F.mse_loss(model(pictures), heatmaps(joints, args.size))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {total.item() / len(loader):.5f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
